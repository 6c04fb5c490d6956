"""Qwen2-Audio: Whisper's encoder over the frames that are really there, a projector, and Qwen2.

An instance of the audio module is a clip, counted in rows after the convolutions, two frames of the spectrogram each;
its ``merged`` size is half of that. Fields: ``mel`` [rows, 3 bins], of every row its two frames and the next one,
``tokens`` and ``labels``. The library computes padding to thirty seconds too, and hides it from the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ds_dip.models import kinds
from ds_dip.models.context import Context
from ds_dip.models.hf.parts import Family, Part, encoder
from ds_dip.models.hf.shell import Shell
from ds_dip.models.hf.text import language
from ds_dip.models.spec import Layer, TensorSpec


class Embeddings(nn.Module):
    """Frames to rows [N, hidden] by two convolutions, with fixed positions."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module, positions: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2, self.positions = conv1, conv2, positions

    def forward(self, x: Any, context: Context) -> Tensor:
        """Embed every clip of ``mel``."""
        weights: Any = self.positions.weight
        found = []
        for rows in torch.split(context.fields["mel"].to(weights.dtype), list(context.sizes.tokens)):
            frames = rows.view(len(rows), 3, -1)
            # The frame behind the last row's is the one that the convolutions still see.
            whole = torch.cat([frames[:, :2].flatten(0, 1), frames[-1:, 2]]).t()[None]
            inner = functional.gelu(self.conv1(whole))
            inner = functional.gelu(self.conv2(inner))[0].t()[: len(rows)]
            found.append(inner + weights[: len(rows)])
        return torch.cat(found)


class AudioBlock(nn.Module):
    """A layer of the encoder, [N, hidden] to [N, hidden], attention within each clip."""

    selects_operators = True

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The library's layer on packed rows."""
        output: Tensor = self.block(x[None], attention_mask=None, packed=context.sizes.tokens)
        return output[0]


class Projector(nn.Module):
    """Pairs of rows [N, hidden] to rows of the language model's width [M, output]."""

    pooler: Any

    def __init__(self, norm: nn.Module, projector: nn.Module, pooler: nn.Module) -> None:
        super().__init__()
        self.norm, self.projector = norm, projector
        self.__dict__["pooler"] = pooler

    def forward(self, x: Any, context: Context) -> Tensor:
        """Pool, norm and project; a clip's odd last row goes."""
        if not isinstance(x, Tensor):
            (x,) = x.values()
        paired = torch.cat([rows[: len(rows) // 2 * 2] for rows in torch.split(x, list(context.sizes.tokens))])
        pooled = self.pooler(paired.t()[None])[0].t()
        projected: Tensor = self.projector(self.norm(pooled))
        return projected


def split(shell: Shell) -> Family:
    """Convolutions, the encoder's layers, pooling with the projector, and the language model."""
    config = shell.model.config
    audio, text = config.audio_config, config.text_config
    hidden, heads, path = audio.d_model, audio.encoder_attention_heads, "model.audio_tower"
    width = kinds.Width(hidden, heads, heads, hidden // heads, audio.encoder_ffn_dim, gated=False)
    # Both convolutions count as one patch embedding with as many weights.
    numbers = 3 * (audio.num_mel_bins + hidden)
    first = kinds.patch_embedding(hidden, 1, numbers, audio.max_source_positions // 2, "mel")
    names = {"conv1": f"{path}.conv1", "conv2": f"{path}.conv2", "positions": f"{path}.embed_positions"}
    block = kinds.encoder_block(width, audio.encoder_layers)
    layers = (Part(block, AudioBlock, {"block": f"{path}.layers.{n}"}) for n in range(audio.encoder_layers))
    options = {"hidden": hidden, "merge": 1, "output": text.hidden_size}
    projector = Part(
        Layer("merger", (TensorSpec(("merged", text.hidden_size)),), (), options),
        Projector,
        {"norm": f"{path}.layer_norm", "projector": "model.multi_modal_projector"},
        {"pooler": f"{path}.avg_pooler"},
    )
    chains = encoder(shell, "audio", [Part(first, Embeddings, names), *layers], [projector])
    tokens = {chains[-1].name: (config.audio_token_id,)}
    return Family((*chains, language(shell, "model.language_model", text, tokens)))
