"""Instances packed along dimension 0 without padding: attention within them, and their positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from math import isqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ds_dip.models.spec import Sizes


@dataclass(frozen=True)
class Packing:
    """Packed rows grouped by the instances' size, so that equal ones run as one batch.

    ``runs`` are (instances, size), shortest first. ``order`` brings the rows into the runs' order and ``inverse``
    back; both are None where they lie so already.
    """

    runs: tuple[tuple[int, int], ...]
    order: Tensor | None
    inverse: Tensor | None


@lru_cache(maxsize=64)
def pack(tokens: tuple[int, ...], device: torch.device) -> Packing:
    """Group instances of these sizes."""
    sizes = np.asarray(tokens, dtype=np.int64)
    by_size = np.argsort(sizes, kind="stable")
    runs = tuple((len(list(group)), int(size)) for size, group in groupby(sizes[by_size]) if size)
    if all(a <= b for a, b in pairwise(tokens)):
        return Packing(runs, None, None)
    starts = np.cumsum(sizes) - sizes
    order = np.concatenate([np.arange(starts[i], starts[i] + sizes[i]) for i in by_size])
    return Packing(runs, _constant(order, device), _constant(np.argsort(order), device))


def attention(
    query: Tensor, key: Tensor, value: Tensor, tokens: tuple[int, ...], causal: bool, scale: float | None = None
) -> Tensor:
    """Attention within each instance: query [N, H, d], key and value [N, G, d] with G dividing H, to [N, H, d].

    ``scale`` multiplies the products; by default 1/sqrt(d).
    """
    packing = pack(tokens, query.device)
    if packing.order is not None:
        query, key, value = (x.index_select(0, packing.order) for x in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    # One split per tensor: its backward is one concatenation, where slices would each fill a whole gradient.
    rows = [instances * size for instances, size in packing.runs]
    outputs = []
    for run, *parts in zip(packing.runs, *(torch.split(x, rows) for x in (query, key, value)), strict=True):
        q, k, v = (x.view(*run, *x.shape[1:]).transpose(1, 2) for x in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
        outputs.append(mixed.transpose(1, 2).flatten(0, 1))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs) if outputs else query
    return output if packing.inverse is None else output.index_select(0, packing.inverse)


@dataclass(frozen=True)
class CrossPacking:
    """Packed rows and the rows they attend to, grouped by both sizes: ``runs`` are (instances, size, other size).

    ``order`` and ``others`` bring both into the runs' order, ``inverse`` the first ones back.
    """

    runs: tuple[tuple[int, int, int], ...]
    order: Tensor
    inverse: Tensor
    others: Tensor


@lru_cache(maxsize=64)
def pack_pairs(sizes: Sizes, device: torch.device) -> CrossPacking:
    """Group instances by ``tokens`` and ``merged``."""
    pairs = list(zip(sizes.tokens, sizes.merged, strict=True))
    by_pair = sorted(range(len(pairs)), key=pairs.__getitem__)
    runs = tuple((len(list(group)), *pair) for pair, group in groupby(pairs[i] for i in by_pair) if pair[0])
    rows, others = (_in_order(own, by_pair) for own in (sizes.tokens, sizes.merged))
    return CrossPacking(runs, _constant(rows, device), _constant(np.argsort(rows), device), _constant(others, device))


def _in_order(tokens: tuple[int, ...], instances: list[int]) -> np.ndarray:
    """Row numbers of packed instances in another order of the instances."""
    starts = np.cumsum((0, *tokens))
    parts = [np.arange(starts[i], starts[i + 1]) for i in instances]
    return np.concatenate([np.arange(0), *parts])


def cross_attention(query: Tensor, key: Tensor, value: Tensor, sizes: Sizes) -> Tensor:
    """Attention from every instance's rows to its other rows: query [N, H, d], key and value [M, G, d], to [N, H, d].

    ``sizes.tokens`` are the rows of every instance in the query and ``sizes.merged`` those in key and value; where
    there are none of the latter the result is 0.
    """
    packing = pack_pairs(sizes, query.device)
    grouped = query.shape[1] != key.shape[1]
    query = query.index_select(0, packing.order)
    key, value = key.index_select(0, packing.others), value.index_select(0, packing.others)
    rows = [instances * size for instances, size, _ in packing.runs]
    others = [instances * other for instances, _, other in packing.runs]
    outputs = []
    parts = torch.split(query, rows), torch.split(key, others), torch.split(value, others)
    for (instances, size, other), *run in zip(packing.runs, *parts, strict=True):
        q, k, v = (
            x.view(instances, length, *x.shape[1:]).transpose(1, 2)
            for x, length in zip(run, (size, other, other), strict=True)
        )
        if other:
            mixed = functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)
        else:
            mixed = torch.zeros_like(q)
        outputs.append(mixed.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, packing.inverse) if outputs else query


@lru_cache(maxsize=64)
def owners(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """The number of every row's instance [N]."""
    return _constant(np.repeat(np.arange(len(tokens)), tokens), device)


@lru_cache(maxsize=16)
def rotary(tokens: tuple[int, ...], head_dim: int, theta: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cosines and sines [2, N, 1, head_dim / 2] of every row's position within its instance.

    A table rather than a buffer: converting a model to half precision must not round the angles.
    """
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    angles = np.concatenate([np.arange(size) for size in (0, *tokens)])[:, None, None] * frequencies
    return _constant(np.stack([np.cos(angles), np.sin(angles)]), device, dtype)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the pairs (i, i + d/2) of x [N, H, d] by their positions' angles from ``rotary``."""
    cos, sin = table
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


@lru_cache(maxsize=64)
def grid(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """Row and column [2, N] of every patch of square images whose patches lie row by row.

    Raises ValueError where a size is no square number.
    """
    places = {size: np.divmod(np.arange(size), max(_side(size), 1)) for size in set(tokens) | {0}}
    return _constant(np.concatenate([np.stack(places[size]) for size in (0, *tokens)], axis=1), device)


@lru_cache(maxsize=64)
def squares(tokens: tuple[int, ...], merge: int, device: torch.device) -> Tensor:
    """Row numbers [N] of the patches with every square of ``merge`` neighbours adjacent, squares row by row.

    Raises ValueError where an image does not divide into such squares.
    """
    root, places = isqrt(merge), {0: np.arange(0)}
    for size in set(tokens) - {0}:
        blocks, rest = divmod(_side(size), root)
        if rest:
            raise ValueError(
                f"an image has {size} patches, which do not divide into squares of {merge}; "
                "give images of another size or another merge"
            )
        cells = np.arange(size).reshape(blocks, root, blocks, root)
        places[size] = cells.transpose(0, 2, 1, 3).reshape(-1)
    starts = np.cumsum((0, *tokens))
    parts = [places[size] + start for size, start in zip((0, *tokens), (0, *starts[:-1]), strict=True)]
    return _constant(np.concatenate(parts), device)


def _side(size: int) -> int:
    side = isqrt(size)
    if side * side != size:
        raise ValueError(f"an image has {size} patches, which is no square number; give square images")
    return side


def _constant(array: np.ndarray, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    # Cached tensors must not be inference tensors: a later backward would refuse them.
    with torch.inference_mode(False):
        return torch.as_tensor(array).to(device=device, dtype=dtype)
