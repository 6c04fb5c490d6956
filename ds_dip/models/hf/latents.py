"""What diffusion transformers of diffusers have in common: latents by patches, and what travels along their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ds_dip.models.context import Context
from ds_dip.models.spec import TensorSpec

#: Patches [N, D], text [M, D], every instance's time [I, D], and its modulation [I, 6 D].
State = tuple[Tensor, Tensor, Tensor, Tensor]


def state_of(hidden: int) -> tuple[TensorSpec, ...]:
    """What ``State`` is made of."""
    return (
        TensorSpec(("tokens", hidden)),
        TensorSpec(("merged", hidden)),
        TensorSpec(("instances", hidden)),
        TensorSpec(("instances", 6 * hidden)),
    )


def grids_of(context: Context) -> list[tuple[int, ...]]:
    """Patches of every instance along each axis; ValueError where their places are not those of a whole one."""
    grids = []
    for size, places in zip(context.sizes.tokens, torch.split(context.fields["places"], list(context.sizes.tokens)),
                            strict=True):  # fmt: skip
        grid = tuple((places[-1] + 1).tolist())
        if prod(grid) != size:
            raise ValueError(
                f"an instance has {size} patches, and the last one's place is {places[-1].tolist()}; give the patches "
                "of whole latents, the last axis first"
            )
        grids.append(grid)
    return grids


def latents_of(rows: Tensor, grid: Sequence[int], patch: Sequence[int]) -> Tensor:
    """Patches [N, numbers] of one instance as [channels, …], of as many axes as ``grid`` and ``patch`` have."""
    axes = len(grid)
    whole = rows.view(*grid, *patch, -1)
    order = [axis for pair in zip(range(axes), range(axes, 2 * axes), strict=True) for axis in pair]
    sides = (count * own for count, own in zip(grid, patch, strict=True))
    return whole.permute(2 * axes, *order).reshape(whole.shape[-1], *sides)
