"""The kinds of layer our own models are made of, as specifications without torch.

Every number a layer's cost depends on lies in ``Layer.options``. With N the sum of the instances' sizes
s_i, M the sum of their merged sizes m_i, I their number, D ``hidden``, H ``heads``, G ``kv_heads``, d ``head_dim``,
F ``ffn``, P the numbers of a patch and T the text's width, the forward takes (the backward of trainable layers twice
as much, half of it for the weights):

=================  ==========================================================  ==============================
kind               FLOP                                                        parameters
=================  ==========================================================  ==============================
patch_embedding    2 N patch² channels D                                       patch² channels D + D + 2 side D
encoder_block      2 N D (2 H + 2 G) d + 4 Σ s_i² H d + 2 N (2 + gated) D F    D (2 H + 2 G) d + (2 + gated) D F
                                                                               + (H + 2 G) d + D
                                                                               + (1 + gated) F + D + 4 D
merger             2 M (merge D + output) inner                                (merge D + output + 1) inner
                                                                               + output + 2 D
token_embedding    none: it moves N D elements                                 vocabulary D
decoder_block      2 N D (2 H + 2 G) d + 2 Σ s_i² H d + 2 N (2 + gated) D F    D (2 H + 2 G) d + (2 + gated) D F + 2 D
head               2 N D vocabulary                                            D vocabulary + D
text_output        none                                                        D
video_embedding    2 N P D + 2 M T D + 2 I (256 D + 7 D²)                      (P + T + 256) D + 7 D² + 9 D
                                                                               + (2 side + frames) D
diffusion_block    2 N D (4 H + 2 G) d + 2 M D 2 G d + 4 Σ s_i (s_i + m_i) H d  D (4 H + 4 G) d + (2 + gated) D F
                   + 2 N (2 + gated) D F                                       + 2 (H + 2 G) d + (1 + gated) F + 9 D
video_output       2 N D P                                                     D P + P + 2 D
=================  ==========================================================  ==============================

An encoder block attends within each instance in both directions, or within each of its windows (s_i is then a window's
size), a decoder block causally (half of the products). A diffusion block attends to its clip and then to the clip's
text: for a diffusion transformer ``merged`` are the clips' tokens of text, which travel along its chain. A merger's
``inner`` is its output's width unless an option says otherwise. ``depth`` scales the initial weights and
``rope_theta`` the rotary positions; neither costs anything. Another library's layer, which counts as one of these,
tells by the option ``weights`` how many parameters it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ds_dip.models.spec import Layer, Model, TensorSpec

#: Numbers that a diffusion transformer's timestep is spread to.
TIMESTEP = 256
#: Shifts, scales and gates of a diffusion block's two modulated parts.
MODULATIONS = 6
#: The layers of a diffusion transformer.
DIFFUSION = ("video_embedding", "diffusion_block", "video_output")
#: Label of a token that is not supervised.
IGNORED = -100
#: Option of a token embedding that holds the token standing for one output row of an upstream module.
PLACEHOLDER = "placeholder_"


@dataclass(frozen=True, slots=True)
class Width:
    """The size of a block: hidden size, heads, key/value groups, size of a head, feed-forward size."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool

    def options(self, depth: int) -> dict[str, int]:
        """The block's options; ``depth`` is the number of blocks in its module."""
        return {
            "hidden": self.hidden,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "ffn": self.ffn,
            "gated": int(self.gated),
            "depth": depth,
        }


def patch_embedding(hidden: int, patch: int, channels: int, side: int, field: str = "pixels") -> Layer:
    """First layer of an image encoder: patches [N, patch² channels] to [N, hidden], with positions.

    An instance is a square image whose patches lie row by row, at most ``side`` x ``side`` of them.
    """
    options = {"hidden": hidden, "patch": patch, "channels": channels, "side": side}
    return Layer("patch_embedding", (TensorSpec(("tokens", hidden)),), (field,), options)


def encoder_block(width: Width, depth: int, window: int | None = None) -> Layer:
    """Pre-norm transformer block, [N, hidden] to [N, hidden], attention within each instance.

    With a ``window`` it is within pieces of that many patches (see ``windows``).
    """
    options = width.options(depth) | ({} if window is None else {"window": window})
    return Layer("encoder_block", (TensorSpec(("tokens", width.hidden)),), (), options)


def windows(tokens: tuple[int, ...], window: int | None) -> tuple[int, ...]:
    """Sizes of the pieces that attend to themselves: whole instances, or ``window`` patches of each and the rest."""
    if window is None:
        return tokens
    pieces = ((window,) * (size // window) + ((size % window,) if size % window else ()) for size in tokens)
    return tuple(piece for own in pieces for piece in own)


def merger(hidden: int, merge: int, output: int) -> Layer:
    """Last layer of an image encoder, the adapter: squares of ``merge`` patches become one row [M, output].

    It lies at the end of the encoder so that the boundary carries the small merged rows.
    """
    return Layer("merger", (TensorSpec(("merged", output)),), (), {"hidden": hidden, "merge": merge, "output": output})


def inner_of(options: Mapping[str, int]) -> int:
    """The width between a merger's two projections."""
    return options.get("inner", options["output"])


def token_embedding(hidden: int, vocabulary: int, placeholders: Mapping[str, int]) -> Layer:
    """First layer of a language model: tokens [N] to [N, hidden].

    ``placeholders`` name, in data-flow order, the token that stands for one row of each upstream module's output.
    """
    options = {"hidden": hidden, "vocabulary": vocabulary}
    options |= {PLACEHOLDER + module: token for module, token in placeholders.items()}
    return Layer("token_embedding", (TensorSpec(("tokens", hidden)),), ("tokens",), options)


def decoder_block(width: Width, depth: int, rope_theta: int) -> Layer:
    """Pre-norm transformer block with rotary positions, causal within each instance, [N, hidden] to the same."""
    options = width.options(depth) | {"rope_theta": rope_theta}
    return Layer("decoder_block", (TensorSpec(("tokens", width.hidden)),), (), options)


def head(hidden: int, vocabulary: int) -> Layer:
    """Last layer of a language model: final norm and logits [N, vocabulary]; the loss reads ``labels`` beside it."""
    options = {"hidden": hidden, "vocabulary": vocabulary}
    return Layer("head", (TensorSpec(("tokens", vocabulary)),), ("labels",), options)


def text_output(hidden: int) -> Layer:
    """Last layer of a text encoder: final norm, [N, hidden] to the same."""
    return Layer("text_output", (TensorSpec(("tokens", hidden)),), (), {"hidden": hidden})


@dataclass(frozen=True, slots=True)
class Latent:
    """Clips' latents: patches of ``patch`` x ``patch`` x ``channels`` numbers, ``side`` x ``side`` of them a frame.

    A clip has at most ``frames`` frames; ``field`` is the dataset field with its patches, frame by frame.
    """

    patch: int
    channels: int
    side: int
    frames: int
    field: str = "latents"

    @property
    def numbers(self) -> int:
        """Numbers a patch."""
        return self.patch**2 * self.channels


def _conditioned(hidden: int) -> tuple[TensorSpec, ...]:
    """What travels along a diffusion transformer: patches, text and every clip's modulation."""
    return (
        TensorSpec(("tokens", hidden)),
        TensorSpec(("merged", hidden)),
        TensorSpec(("instances", MODULATIONS * hidden)),
    )


def video_embedding(hidden: int, text: int, latent: Latent) -> Layer:
    """First layer of a diffusion transformer: noised patches, the text encoder's output, a modulation by timestep."""
    options = {"hidden": hidden, "text": text, "numbers": latent.numbers, "side": latent.side, "frames": latent.frames}
    return Layer("video_embedding", _conditioned(hidden), (latent.field,), options)


def diffusion_block(width: Width, depth: int) -> Layer:
    """Transformer block modulated by the timestep (adaLN-single, PixArt), attending to its clip, then to its text."""
    return Layer("diffusion_block", _conditioned(width.hidden), (), width.options(depth))


def video_output(hidden: int, latent: Latent) -> Layer:
    """Last layer of a diffusion transformer: velocities [N, numbers]; the loss reads the patches beside them."""
    options = {"hidden": hidden, "numbers": latent.numbers}
    return Layer("video_output", (TensorSpec(("tokens", latent.numbers)),), (latent.field,), options)


def loses(model: Model, module: str, index: int) -> bool:
    """Whether the loss follows a layer in its stage."""
    layers = model.module(module).layers
    return module == model.loss_module and index == len(layers) - 1 and layers[index].kind == "head"
