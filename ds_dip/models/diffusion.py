"""The torch layers of a diffusion transformer over packed clips, and its loss.

Training is rectified flow (Liu et al., 2022): with latents x, noise e and a time t between 0 and 1 the model sees
(1 - t) x + t e and learns e - x. Noise and times follow from the run's seed, the step and the clip alone, so that they
are the same in any microbatch, at both ends of the pipeline, and when a stage runs again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ds_dip.models.context import Context
from ds_dip.models.kinds import MODULATIONS, TIMESTEP
from ds_dip.models.layers import EMBEDDING, Attention, FeedForward, Upstream, linear, residual_scale
from ds_dip.models.packing import cross_attention, owners
from ds_dip.models.spec import Layer

#: What travels from layer to layer: patches [N, hidden], text [M, hidden], modulation [instances, 6 hidden].
Conditioned = tuple[Tensor, Tensor, Tensor]


def flow_matching_loss(velocities: Tensor, context: Context) -> Tensor:
    """Sum over patches of the mean squared error of the predicted velocities [N, numbers], a scalar in fp32."""
    latents = context.fields["latents"]
    wide = velocities if velocities.dtype == torch.float64 else velocities.float()
    _, noise = drawn(context, latents)
    return (wide - (noise - latents).to(wide.dtype)).square().mean(dim=1).sum()


def drawn(context: Context, latents: Tensor) -> tuple[Tensor, Tensor]:
    """(time of every clip [instances], noise like ``latents``) of this step."""
    times, noise = [], []
    for name, size in zip(context.instances, context.sizes.tokens, strict=True):
        key = f"{context.seed}/{context.step}/{name}/noise".encode()
        generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7], "big"))
        times.append(torch.rand(1, generator=generator))
        noise.append(torch.randn(size, latents.shape[1], generator=generator))
    if not noise:
        return latents.new_zeros(0), torch.zeros_like(latents)
    return torch.cat(times).to(latents), torch.cat(noise).to(latents)


def per_row(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Every instance's row of ``x`` [instances, D] for each of its ``sizes`` rows."""
    return x.index_select(0, owners(sizes, x.device))


class _Gated(torch.autograd.Function):
    """Rows [N, hidden] times the gates [instances, hidden] of their instances, keeping no row's gate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gates: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Nothing in here is in a graph."""
        ctx.sizes = sizes
        ctx.save_for_backward(x, gates)
        return x * per_row(gates, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Spread the gates to rows again; a gate's gradient is its instance's sum."""
        x, gates = ctx.saved_tensors
        of_x, of_gates, _ = ctx.needs_input_grad
        summed = None
        if of_gates:
            summed = torch.zeros_like(gates).index_add_(0, owners(ctx.sizes, x.device), gradient * x)
        return gradient * per_row(gates, ctx.sizes) if of_x else None, summed, None


def gated(x: Tensor, gates: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """``x`` [N, hidden], every row times the gate of its instance."""
    result: Tensor = _Gated.apply(x, gates, sizes)  # type: ignore[no-untyped-call]  # torch has no types here
    return result


@dataclass(frozen=True, slots=True)
class Modulated:
    """A norm scaled and shifted by the numbers [instances, hidden] of every row's instance.

    They are spread to rows inside, so that a stage which runs this again keeps them for instances alone.
    """

    shift: Tensor
    scale: Tensor
    sizes: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """The rows, normed and modulated."""
        return modulate(x, per_row(self.shift, self.sizes), per_row(self.scale, self.sizes))

    def parameters(self) -> Iterator[Tensor]:
        """What wants gradients beside the rows."""
        return iter((self.shift, self.scale))


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Norm without weights of its own, scaled and shifted."""
    return functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class VideoEmbedding(nn.Module):
    """Patches of latents, noised, to [N, hidden] with learned positions; text and modulation beside them."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        o, self.field = layer.options, layer.fields[0]
        self.side, self.most, hidden = o["side"], o["frames"], o["hidden"]
        self.project = linear(o["numbers"], hidden, bias=True)
        self.rows = nn.Parameter(torch.randn(self.side, hidden) * EMBEDDING)
        self.columns = nn.Parameter(torch.randn(self.side, hidden) * EMBEDDING)
        self.frames = nn.Parameter(torch.randn(self.most, hidden) * EMBEDDING)
        self.text = linear(o["text"], hidden, bias=True)
        self.inner = linear(TIMESTEP, hidden, bias=True)
        self.outer = linear(hidden, hidden, bias=True)
        self.modulation = linear(hidden, MODULATIONS * hidden, bias=True, scale=0.2)

    def forward(self, x: Upstream, context: Context) -> Conditioned:
        """Noise and embed the clips of ``field``; takes the text encoder's rows, a clip's after another's."""
        (text,) = x.values()
        if not isinstance(text, Tensor):
            (text,) = text
        sizes = context.sizes
        if len(text) != sum(sizes.merged):
            raise ValueError(
                f"the text encoder gave {len(text)} rows, and the clips say {sum(sizes.merged)} tokens of text; make "
                "'merged' of a clip in the metadata the number of its text's tokens"
            )
        latents = context.fields[self.field]
        times, noise = drawn(context, latents)
        mixed = torch.lerp(latents, noise, per_row(times[:, None], sizes.tokens)).to(self.project.weight.dtype)
        embedded = self.project(mixed) + self._positions(sizes.tokens)
        modulation = self.outer(functional.silu(self.inner(self._spread(times))))
        return embedded, self.text(text.to(self.text.weight.dtype)), self.modulation(functional.silu(modulation))

    def _positions(self, sizes: tuple[int, ...]) -> Tensor:
        frame = self.side**2
        for size in sizes:
            if size % frame or size > frame * self.most:
                raise ValueError(
                    f"a clip has {size} patches, expected whole frames of {self.side} x {self.side}, at most "
                    f"{self.most} of them; give such clips or a model with other frames"
                )
        device = self.rows.device
        places = torch.cat([torch.arange(size, device=device) for size in (0, *sizes)])
        rows, columns, frames = places % frame // self.side, places % self.side, places // frame
        return (
            functional.embedding(rows, self.rows)
            + functional.embedding(columns, self.columns)
            + functional.embedding(frames, self.frames)
        )

    def _spread(self, times: Tensor) -> Tensor:
        """Cosines and sines [instances, 256] of every time, as diffusion models have them."""
        half = torch.arange(TIMESTEP // 2, dtype=torch.float64, device=times.device)
        angles = 1000 * times.double()[:, None] * torch.exp(-log(10000) * half / (TIMESTEP // 2))
        return torch.cat([angles.cos(), angles.sin()], dim=1).to(self.inner.weight.dtype)


class CrossAttention(nn.Module):
    """Attention from every clip's patches [N, hidden] to its text [M, hidden]."""

    def __init__(self, options: Mapping[str, int]) -> None:
        super().__init__()
        self.head_dim, width = options["head_dim"], options["heads"] * options["head_dim"]
        self.query = linear(options["hidden"], width, bias=True)
        self.pair = linear(options["hidden"], 2 * options["kv_heads"] * self.head_dim, bias=True)
        self.output = linear(width, options["hidden"], bias=True, scale=residual_scale(options))

    def forward(self, x: Tensor, text: Tensor, context: Context) -> Tensor:
        """Mix rows of text for every patch."""
        query = self.query(x).unflatten(-1, (-1, self.head_dim))
        key, value = self.pair(text).unflatten(-1, (-1, self.head_dim)).chunk(2, dim=1)
        output: Tensor = self.output(cross_attention(query, key, value, context.sizes).flatten(1))
        return output


class DiffusionBlock(nn.Module):
    """Attention within the clip, attention to its text, feed-forward; text and modulation go on as they are."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.attention = Attention(layer.options, bias=True)
        self.cross = CrossAttention(layer.options)
        self.feed_forward = FeedForward(layer.options, bias=True)
        # Gates are 1 at first: the block begins as one without them.
        self.table = nn.Parameter(torch.tensor([0.0, 0, 1, 0, 0, 1])[:, None].repeat(1, layer.options["hidden"]))

    def forward(self, x: Conditioned, context: Context) -> Conditioned:
        """Three parts, each added to the patches."""
        patches, text, modulation = x
        sizes = context.sizes.tokens
        shared = modulation.view(len(modulation), MODULATIONS, -1) + self.table
        shift, scale, gate, *others = shared.unbind(1)
        patches = patches + gated(self.attention(patches, Modulated(shift, scale, sizes), context), gate, sizes)
        patches = patches + self.cross(patches, text, context)
        shift, scale, gate = others
        patches = patches + gated(self.feed_forward(patches, Modulated(shift, scale, sizes), context), gate, sizes)
        return patches, text, modulation


class VideoOutput(nn.Module):
    """Final norm, modulated, and velocities [N, numbers]."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        hidden = layer.options["hidden"]
        self.table = nn.Parameter(torch.zeros(2, hidden))
        self.project = linear(hidden, layer.options["numbers"], bias=True, scale=0.3)

    def forward(self, x: Conditioned, context: Context) -> Tensor:
        """Velocities of every patch."""
        patches, _, modulation = x
        shared = modulation.view(len(modulation), MODULATIONS, -1)[:, :2] + self.table
        shift, scale = shared.unbind(1)
        norm = Modulated(shift, scale, context.sizes.tokens)
        return context.projected(norm, self.project, patches, norm.parameters())


DIFFUSION_BUILDERS: Mapping[str, Callable[[Layer], nn.Module]] = {
    "video_embedding": VideoEmbedding,
    "diffusion_block": DiffusionBlock,
    "video_output": VideoOutput,
}
