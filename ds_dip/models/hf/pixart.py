"""PixArt (alpha at 512 pixels or less, sigma) of diffusers behind T5 of transformers: text to image, trained on noise.

An instance of the text module is a picture's prompt, one of the image module a picture; the image's ``merged`` sizes
are the prompts' tokens. Fields: ``tokens`` of the prompts; ``latents`` [patches, numbers] of the pictures, a patch's
numbers in height, width and channel, patch by patch in height and width; ``places`` [patches, 2], their rows and
columns. The noise and a time are drawn as ``ds_dip.models.diffusion`` draws them; the time is one of the scheduler's
steps, and the model learns the noise, or the velocity where the scheduler says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from diffusers.models.embeddings import get_2d_sincos_pos_embed
from torch import Tensor, nn

from ds_dip.models import kinds
from ds_dip.models.context import Context
from ds_dip.models.diffusion import drawn, per_row
from ds_dip.models.hf.latents import State, grids_of, latents_of, state_of
from ds_dip.models.hf.parts import Chain, Family, Part
from ds_dip.models.hf.prompts import prompts
from ds_dip.models.hf.shell import Shell, SplitError
from ds_dip.models.spec import Layer, TensorSpec

#: What the model is called, and whether it learns the noise of a scheduler's steps.
NAME, STEPWISE = "pixart", True
_KINDS = ("epsilon", "v_prediction")


@dataclass(frozen=True)
class Noise:
    """The noise of a scheduler's steps; as a function the loss summed over a microbatch.

    That is, over patches, the mean squared error of what the model gives for one [N, numbers], a scalar in fp32.
    """

    scheduler: Any = field(repr=False)

    def steps(self, times: Tensor) -> Tensor:
        """The steps [I] of times between 0 and 1."""
        count = int(self.scheduler.config.num_train_timesteps)
        return (times * count).long().clamp(max=count - 1)

    def mixed(self, latents: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """(latents [N, numbers] with their noise, the step of every instance)."""
        times, noise = drawn(context, latents)
        steps = self.steps(times)
        mixed: Tensor = self.scheduler.add_noise(latents, noise, per_row(steps, context.sizes.tokens))
        return mixed, steps

    def __call__(self, given: Tensor, context: Context) -> Tensor:
        """The loss."""
        wide = given if given.dtype == torch.float64 else given.float()
        latents = context.fields["latents"].to(wide.dtype)
        times, noise = drawn(context, latents)
        wanted = noise
        if self.scheduler.config.prediction_type == "v_prediction":
            wanted = self.scheduler.get_velocity(latents, noise, per_row(self.steps(times), context.sizes.tokens))
        return (wide - wanted).square().mean(dim=1).sum()


@dataclass(frozen=True)
class Positions:
    """What the library adds to patches by their places; ``base`` is the side of a picture that it is made for."""

    hidden: int
    base: int
    scale: float

    def of(self, grid: tuple[int, ...], device: torch.device) -> Tensor:
        """Of a picture's patches [N, hidden], in fp32."""
        with torch.inference_mode(False):
            return _positions(self, grid, device)


@lru_cache(maxsize=256)
def _positions(own: Positions, grid: tuple[int, ...], device: torch.device) -> Tensor:
    found: Tensor = get_2d_sincos_pos_embed(
        own.hidden, grid, base_size=own.base, interpolation_scale=own.scale, device=device, output_type="pt"
    )
    return found.float()


class Embedding(nn.Module):
    """Latents with noise, prompts and steps to what the blocks take."""

    def __init__(
        self, patches: nn.Module, text: nn.Module, conditions: nn.Module, noise: Noise, positions: Positions, side: int
    ) -> None:
        super().__init__()
        self.patches, self.text, self.conditions = patches, text, conditions
        self.__dict__.update(noise=noise, positions=positions, side=side)

    noise: Noise
    positions: Positions
    side: int

    def forward(self, x: Any, context: Context) -> State:
        """Noise the pictures, embed patches, text and steps."""
        (words,) = x.values()
        weight: Any = self.patches.weight
        sizes = context.sizes
        mixed, steps = self.noise.mixed(context.fields["latents"], context)
        rows = []
        for picture, grid in zip(torch.split(mixed.to(weight.dtype), list(sizes.tokens)), grids_of(context),
                                 strict=True):  # fmt: skip
            embedded = self.patches(latents_of(picture, grid, (self.side, self.side))[None])[0].flatten(1).t()
            rows.append((embedded + self.positions.of(grid, embedded.device)).to(embedded.dtype))
        modulation, time = self.conditions(steps, None, batch_size=len(steps), hidden_dtype=weight.dtype)
        return torch.cat(rows), self.text(words.to(weight.dtype)), time, modulation


class ImageBlock(nn.Module):
    """A block of the transformer, over each picture by itself."""

    selects_operators = True

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: State, context: Context) -> State:
        """The library's block; text and steps go on as they are."""
        patches, text, time, modulation = x
        sizes = context.sizes
        pictures, words = torch.split(patches, list(sizes.tokens)), torch.split(text, list(sizes.merged))
        found = [
            self.block(picture[None], encoder_hidden_states=prompt[None], timestep=shifts[None])[0]
            for picture, prompt, shifts in zip(pictures, words, modulation, strict=True)
        ]
        return torch.cat(found), text, time, modulation


class Output(nn.Module):
    """Final norm, modulated, and the noise of every patch [N, numbers]; its variance is not learned."""

    def __init__(self, norm: nn.Module, projection: nn.Module, table: nn.Parameter, channels: int, patch: int) -> None:
        super().__init__()
        self.norm, self.projection, self.table = norm, projection, table
        self.channels, self.patch = channels, patch

    def forward(self, x: State, context: Context) -> Tensor:
        """As the end of the library's forward."""
        patches, _, time, _ = x
        shift, scale = (self.table + time[:, None]).unbind(1)
        tokens = context.sizes.tokens
        normed = self.norm(patches) * (1 + per_row(scale, tokens)) + per_row(shift, tokens)
        given: Tensor = self.projection(normed)
        return given.view(len(given), self.patch**2, -1)[..., : self.channels].flatten(1)


def split(text: Shell, image: Shell, scheduler: Any) -> tuple[tuple[Family, Family], Callable[..., Tensor]]:
    """The prompts' encoder, the transformer and its loss; SplitError for a transformer that is told more than text."""
    noise = Noise(scheduler)
    if scheduler.config.prediction_type not in _KINDS:
        raise SplitError(
            f"scheduler.prediction_type is {scheduler.config.prediction_type!r}; PixArt is trained on one of "
            f"{', '.join(_KINDS)}"
        )
    return (prompts(text, ("t5",)), _image(image, text.model.config, noise)), noise


def _image(shell: Shell, text: Any, noise: Noise) -> Family:
    model, config = shell.model, shell.model.config
    if model.use_additional_conditions:
        raise SplitError(
            "adaln_single.emb.resolution_embedder takes each picture's resolution, which no field has; use a model "
            "with use_additional_conditions false"
        )
    if config.caption_channels != text.d_model:
        raise SplitError(f"caption_projection takes {config.caption_channels} numbers, the text encoder gives "
                         f"{text.d_model}; give the one that belongs to it")  # fmt: skip
    if model.out_channels not in (config.in_channels, 2 * config.in_channels):
        raise SplitError(
            f"proj_out gives {model.out_channels} channels for {config.in_channels} of the latents, which are neither "
            "their noise nor noise and variance"
        )
    side, depth, embedder = config.patch_size, config.num_layers, model.pos_embed
    heads, hidden = config.num_attention_heads, model.inner_dim
    numbers, state = side**2 * config.in_channels, state_of(hidden)
    inner = model.transformer_blocks[0].ff.net[-1].in_features
    width = kinds.Width(hidden, heads, heads, config.attention_head_dim, inner, gated=False)
    options = {"hidden": hidden, "text": config.caption_channels, "numbers": numbers, "side": 0, "frames": 0}
    first = Part(
        Layer("video_embedding", state, ("latents", "places"), options),
        Embedding,
        {"patches": "pos_embed.proj", "text": "caption_projection", "conditions": "adaln_single"},
        settings={
            "noise": noise,
            "positions": Positions(hidden, embedder.base_size, embedder.interpolation_scale),
            "side": side,
        },
    )
    block = Layer("diffusion_block", state, (), width.options(depth))
    blocks = (Part(block, ImageBlock, {"block": f"transformer_blocks.{n}"}) for n in range(depth))
    end = Layer(
        "video_output", (TensorSpec(("tokens", numbers)),), ("latents",), {"hidden": hidden, "numbers": numbers}
    )
    last = Part(
        end,
        Output,
        {"norm": "norm_out", "projection": "proj_out", "table": "scale_shift_table"},
        settings={"channels": config.in_channels, "patch": side},
    )
    return Family((Chain("image", (first, *blocks, last), ("text",)),))
