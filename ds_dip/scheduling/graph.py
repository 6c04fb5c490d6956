"""A problem's arrays in the form that compiled kernels take: compact, with the memory rule filled in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_dip.scheduling.admission import admission
from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.columns import Floats

Ints32 = NDArray[np.int32]
Units = NDArray[np.uint32]
"""Indices in hot loops: unsigned ones spare numba the test for a negative index."""


class Compact(NamedTuple):
    """Durations (n,), predecessors as compressed rows and earliest starts: what re-timing needs."""

    duration: Floats
    pred_ptr: Ints32
    pred: Ints32
    pred_delay: Floats
    head: Floats


def compact_of(arrays: Arrays) -> Compact:
    """What re-timing needs, whether or not the problem fits into memory."""
    if "compact" not in arrays.cache:
        rows = (arrays.pred_ptr.astype(np.int32), arrays.pred.astype(np.int32), arrays.pred_delay)
        arrays.cache["compact"] = Compact(arrays.duration, *rows, np.zeros(arrays.n))
    return arrays.cache["compact"]  # type: ignore[no-any-return]


class Graph(NamedTuple):
    """Tasks by position (n,), edges as compressed rows, and needs of the banker's rule.

    ``slot`` is rank * 3 + kind; ``chained`` the task that must follow on its rank, or n;
    ``waiting`` counts predecessors with chains; ``most`` (ranks,) is the largest need on a rank.
    ``limited`` tells whether any rank has a capacity. ``slot_word`` (3 ranks + 1,) is where each
    slot's bits begin in a bitset of 64-bit words, one bit a task; ``claims`` (3 ranks,) whether any task of
    it claims limited memory. ``members`` (groups,) and ``local`` (groups, ranks) count a group's tasks.
    """

    rank: Units
    slot: Units
    group: Units
    duration: Floats
    acquire: Floats
    net: Floats
    claim: Floats
    tail: Floats
    succ_ptr: Units
    succ: Units
    succ_delay: Floats
    waiting: Units
    chained: Units
    limit: Floats
    need: Floats
    need_after: Floats
    most: Floats
    limited: bool
    slot_word: Units
    claims: Units
    members: Units
    local: Units


def graph_of(arrays: Arrays, chain: tuple[tuple[int, int], ...] = ()) -> Graph:
    """The graph with the banker's rule; ``chain`` adds further successions on a rank.

    Raises InfeasibleError where a microbatch does not fit alone.
    """
    key = ("graph", chain)
    if key not in arrays.cache:
        arrays.cache[key] = _graph(arrays, chain)
    return arrays.cache[key]  # type: ignore[no-any-return]


def _graph(arrays: Arrays, chain: tuple[tuple[int, int], ...]) -> Graph:
    rule = admission(arrays)
    chained = np.full(arrays.n, arrays.n, dtype=np.uint32)
    waiting = np.diff(arrays.pred_ptr).astype(np.uint32)
    for before, after in (*rule.chain, *chain):
        chained[before] = after
        waiting[after] += 1
    slot = arrays.rank * 3 + arrays.kind
    words = np.zeros(3 * arrays.ranks + 1, dtype=np.uint32)
    np.cumsum((np.bincount(slot, minlength=3 * arrays.ranks) + 63) // 64, out=words[1:])
    local = np.zeros((arrays.groups(), arrays.ranks), dtype=np.uint32)
    np.add.at(local, (arrays.group, arrays.rank), 1)
    claims = (np.bincount(slot, rule.claim, minlength=3 * arrays.ranks) > 0) & np.isfinite(rule.limit).repeat(3)
    return Graph(
        rank=arrays.rank.astype(np.uint32),
        slot=slot.astype(np.uint32),
        group=arrays.group.astype(np.uint32),
        duration=arrays.duration,
        acquire=arrays.acquire,
        net=arrays.acquire - arrays.release,
        claim=rule.claim,
        tail=arrays.tail,
        succ_ptr=arrays.succ_ptr.astype(np.uint32),
        succ=arrays.succ.astype(np.uint32),
        succ_delay=arrays.succ_delay,
        waiting=waiting,
        chained=chained,
        limit=rule.limit,
        need=rule.need,
        need_after=rule.need_after,
        most=rule.need.max(axis=0) if arrays.n else np.zeros(arrays.ranks),
        limited=bool(np.isfinite(rule.limit).any()),
        slot_word=words,
        claims=claims.astype(np.uint32),
        members=local.sum(axis=1, dtype=np.uint32),
        local=local,
    )
