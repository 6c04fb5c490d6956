"""The space that annealing moves in, made from a problem's arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ds_dip.scheduling.admission import SLACK
from ds_dip.scheduling.arrays import Arrays, numbered
from ds_dip.scheduling.bounds import optimistic, tails
from ds_dip.scheduling.columns import Floats, Ints
from ds_dip.scheduling.graph import Ints32, compact_of


class Space(NamedTuple):
    """What annealing moves in: tasks (n,), predecessor rows, offsets of ranks in a sequence.

    ``head`` and ``follow`` are the least times from the batch's start to a task's and from its end
    to the batch's; ``base`` (ranks,) is the memory in use before a rank's first task. ``table`` (identities,
    microbatches) holds the task of a microbatch that plays a role (kind, module, chunk, sub), or
    -1; rows run along the chain. ``pair_of`` (n,) is a task's pair or -1, ``pairs`` (k, 3) their
    tasks, ``choice_values[choice_ptr[k]:choice_ptr[k+1]]`` (forward, backward and weight duration,
    memory, backward acquire) their choices. Where tasks are in pairs their own values do not count.
    """

    duration: Floats
    pred_ptr: Ints32
    pred: Ints32
    pred_delay: Floats
    head: Floats
    follow: Floats
    acquire: Floats
    net: Floats
    limit: Floats
    rank: Ints32
    offset: Ints32
    base: Floats
    table: Ints32
    limited: bool
    pair_of: Ints32
    pairs: Ints32
    choice_ptr: Ints32
    choice_values: Floats


def space_of(arrays: Arrays) -> Space:
    """Made once for arrays."""
    if "space" not in arrays.cache:
        arrays.cache["space"] = _space(arrays)
    return arrays.cache["space"]  # type: ignore[no-any-return]


def _space(arrays: Arrays) -> Space:
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
