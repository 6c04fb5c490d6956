"""The space that annealing moves in, made from a problem's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ds_dip.scheduling.admission import SLACK
from ds_dip.scheduling.arrays import Arrays, Ints, numbered
from ds_dip.scheduling.bounds import optimistic, tails
from ds_dip.scheduling.graph import compact_of

if TYPE_CHECKING:
    from ds_dip.scheduling.annealing import Space


def space_of(arrays: Arrays) -> Space:
    """Made once for arrays."""
    if "space" not in arrays.cache:
        arrays.cache["space"] = _space(arrays)
    return arrays.cache["space"]  # type: ignore[no-any-return]


def _space(arrays: Arrays) -> Space:
    from ds_dip.scheduling.annealing import Space

    pairs = arrays.problem.pairs
    pair_of = np.full(arrays.n, -1, dtype=np.int32)
    for number, members in enumerate(arrays.pairs.tolist()):
        pair_of[[task for task in members if task >= 0]] = number
    values = [
        (
            choice.forward_duration,
            choice.backward_duration,
            choice.weight_duration or 0.0,
            choice.memory,
            choice.backward_acquire,
        )
        for pair in pairs
        for choice in pair.choices
    ]
    counts = np.bincount(arrays.rank, minlength=arrays.ranks)
    return Space(
        *compact_of(arrays),
        follow=tails(optimistic(arrays)),
        acquire=arrays.acquire,
        net=arrays.acquire - arrays.release,
        limit=arrays.capacity * (1 + SLACK),
        rank=arrays.rank.astype(np.int32),
        offset=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        base=np.zeros(arrays.ranks),
        table=roles(arrays).astype(np.int32),
        limited=bool(np.isfinite(arrays.capacity).any()),
        pair_of=pair_of,
        pairs=arrays.pairs.astype(np.int32),
        choice_ptr=np.cumsum([0, *(len(pair.choices) for pair in pairs)]).astype(np.int32),
        choice_values=np.array(values, dtype=np.float64).reshape(-1, 5),
    )


def roles(arrays: Arrays) -> Ints:
    """Tasks by role (kind, module, chunk, sub, rank; along the chain) and microbatch, -1 where missing."""
    if not arrays.n:
        return np.zeros((0, 0), dtype=np.int64)
    role = numbered(arrays.kind, arrays.module, arrays.chunk, arrays.sub, arrays.rank)
    depth = np.zeros(int(role.max()) + 1, dtype=np.int64)
    np.maximum.at(depth, role, arrays.depth)
    order = np.argsort(depth, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    values, column = np.unique(arrays.microbatch, return_inverse=True)
    table = np.full((len(depth), len(values)), -1, dtype=np.int64)
    table[place[role], column.reshape(-1)] = np.arange(arrays.n)
    return table
