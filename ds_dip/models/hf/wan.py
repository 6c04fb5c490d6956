"""Wan of diffusers behind UMT5 of transformers: text to video, trained by rectified flow.

An instance of the text module is a clip's prompt, one of the video module a clip; the video's ``merged`` sizes are the
prompts' tokens. Fields: ``tokens`` of the prompts; ``latents`` [patches, numbers] of the clips, a patch's numbers in
time, height, width and channel, patch by patch in time, height and width; ``places`` [patches, 3] that say where.
Noise and times are drawn as ``ds_dip.models.diffusion`` draws them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from torch import Tensor, nn

from ds_dip.models import kinds
from ds_dip.models.context import Context
from ds_dip.models.diffusion import drawn, flow_matching_loss, per_row
from ds_dip.models.hf.latents import State, grids_of, latents_of, state_of
from ds_dip.models.hf.parts import Chain, Family, Part
from ds_dip.models.hf.prompts import prompts
from ds_dip.models.hf.shell import Shell, SplitError
from ds_dip.models.spec import Layer, TensorSpec

#: The model's timesteps are thousandths of the way from a clip to noise.
STEPS = 1000
#: What the model is called, and whether it learns the noise of a scheduler's steps.
NAME, STEPWISE = "wan", False


class Embedding(nn.Module):
    """Latents with noise, prompts and times to what the blocks take."""

    def __init__(self, patches: nn.Module, conditions: nn.Module, patch: tuple[int, int, int]) -> None:
        super().__init__()
        self.patches, self.conditions, self.patch = patches, conditions, patch

    def forward(self, x: Any, context: Context) -> State:
        """Noise the clips, embed patches, text and time."""
        (text,) = x.values()
        weight: Any = self.patches.weight
        sizes, latents = context.sizes, context.fields["latents"]
        times, noise = drawn(context, latents)
        mixed = torch.lerp(latents, noise, per_row(times[:, None], sizes.tokens)).to(weight.dtype)
        rows, words, time, modulation = [], [], [], []
        clips, texts = torch.split(mixed, list(sizes.tokens)), torch.split(text, list(sizes.merged))
        for clip, prompt, step, grid in zip(clips, texts, times * STEPS, grids_of(context), strict=True):
            rows.append(self.patches(latents_of(clip, grid, self.patch)[None])[0].flatten(1).t())
            own, shifts, projected, _ = self.conditions(step[None], prompt[None].to(weight.dtype), None)
            words.append(projected[0])
            time.append(own)
            modulation.append(shifts)
        return torch.cat(rows), torch.cat(words), torch.cat(time), torch.cat(modulation)


class VideoBlock(nn.Module):
    """A block of the transformer, over each clip by itself."""

    selects_operators = True
    rotary: Any

    def __init__(self, block: nn.Module, rotary: Any, patch: tuple[int, int, int]) -> None:
        super().__init__()
        self.block, self.patch = block, patch
        self.__dict__["rotary"] = rotary  # no child: see ``text.Block``

    def forward(self, x: State, context: Context) -> State:
        """The library's block; text and times go on as they are."""
        patches, text, time, modulation = x
        sizes, found = context.sizes, []
        clips, texts = torch.split(patches, list(sizes.tokens)), torch.split(text, list(sizes.merged))
        for clip, prompt, shifts, grid in zip(clips, texts, modulation, grids_of(context), strict=True):
            shape = (1, 1, *(count * own for count, own in zip(grid, self.patch, strict=True)))
            turned = tuple(own.to(clip.device) for own in self.rotary(torch.empty(shape, device="meta")))
            found.append(self.block(clip[None], prompt[None], shifts.view(1, 6, -1), turned)[0])
        return torch.cat(found), text, time, modulation


class Output(nn.Module):
    """Final norm, modulated, and the velocity of every patch [N, numbers]."""

    def __init__(self, norm: nn.Module, projection: nn.Module, table: nn.Parameter) -> None:
        super().__init__()
        self.norm, self.projection, self.table = norm, projection, table

    def forward(self, x: State, context: Context) -> Tensor:
        """As the end of the library's forward."""
        patches, _, time, _ = x
        shift, scale = (self.table + time[:, None]).unbind(1)
        tokens = context.sizes.tokens
        normed = self.norm(patches.float()) * (1 + per_row(scale, tokens)) + per_row(shift, tokens)
        velocity: Tensor = self.projection(normed.type_as(patches))
        return velocity


def split(text: Shell, video: Shell) -> tuple[tuple[Family, Family], Callable[..., Tensor]]:
    """The prompts' encoder, the transformer and its loss; SplitError for a transformer that sees images too."""
    return (prompts(text, ("umt5",)), _video(video, text.model.config)), flow_matching_loss


def _video(shell: Shell, text: Any) -> Family:
    config = shell.model.config
    if config.image_dim is not None or config.added_kv_proj_dim is not None:
        raise SplitError(
            f"condition_embedder.image_embedder has {config.image_dim} inputs; only text to video is split"
        )
    if config.text_dim != text.d_model:
        raise SplitError(f"condition_embedder.text_embedder takes {config.text_dim} numbers, the text encoder gives "
                         f"{text.d_model}; give the one that belongs to it")  # fmt: skip
    patch = tuple(config.patch_size)
    numbers, depth = patch[0] * patch[1] * patch[2] * config.in_channels, config.num_layers
    heads, hidden = config.num_attention_heads, config.num_attention_heads * config.attention_head_dim
    width = kinds.Width(hidden, heads, heads, config.attention_head_dim, config.ffn_dim, gated=False)
    state = state_of(hidden)
    options = {"hidden": hidden, "text": config.text_dim, "numbers": numbers, "side": 0, "frames": 0}
    rotary = WanRotaryPosEmbed(config.attention_head_dim, patch, config.rope_max_seq_len)
    first = Part(
        Layer("video_embedding", state, ("latents", "places"), options),
        Embedding,
        {"patches": "patch_embedding", "conditions": "condition_embedder"},
        settings={"patch": patch},
    )
    block = Layer("diffusion_block", state, ("places",), width.options(depth))
    settings = {"rotary": rotary, "patch": patch}
    blocks = (Part(block, VideoBlock, {"block": f"blocks.{n}"}, {}, settings) for n in range(depth))
    end = Layer(
        "video_output", (TensorSpec(("tokens", numbers)),), ("latents",), {"hidden": hidden, "numbers": numbers}
    )
    last = Part(end, Output, {"norm": "norm_out", "projection": "proj_out", "table": "scale_shift_table"})
    return Family((Chain("video", (first, *blocks, last), ("text",)),))
