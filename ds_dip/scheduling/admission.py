"""The banker's rule: a forward may start only where every earlier microbatch could still finish.

Active microbatches are kept in order of their first start. On every rank each of them must be able
to finish once all later ones are left waiting: what it and the later ones hold, plus what it still
needs, fits into capacity. The earliest can then always go on, so no interleaving gets stuck.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.columns import Floats
from ds_dip.scheduling.problem import InfeasibleError

SLACK = 1e-10
"""Relative rounding allowed on a capacity, so that sums of exact fits pass."""


@dataclass(frozen=True, eq=False)
class Admission:
    """What the rule needs to know, made once for a problem.

    ``limit`` (ranks,): capacity with rounding slack. ``need`` (groups, ranks): what a microbatch
    that holds nothing needs to finish alone. ``claim`` (n,): by how much a task lowers its
    microbatch's need. ``need_after`` (n,): the need after a task whose microbatch must follow
    a fixed sequence to fit at all, else -1. ``chain``: extra edges that hold those sequences.
    """

    limit: Floats
    need: Floats
    claim: Floats
    need_after: Floats
    chain: tuple[tuple[int, int], ...]


def admission(arrays: Arrays) -> Admission:
    """Needs of every microbatch; raises InfeasibleError where one does not fit alone."""
    if "admission" not in arrays.cache:
        arrays.cache["admission"] = _admission(arrays)
    return arrays.cache["admission"]  # type: ignore[no-any-return]


def _admission(arrays: Arrays) -> Admission:
    limit = arrays.capacity * (1 + SLACK)
    claim = np.maximum(arrays.acquire - arrays.release, 0.0)
    passing = np.minimum(arrays.acquire, arrays.release)
    need = np.zeros((arrays.groups(), arrays.ranks))
    peak = np.zeros_like(need)
    np.add.at(need, (arrays.group, arrays.rank), claim)
    np.maximum.at(peak, (arrays.group, arrays.rank), passing)
    need += peak
    need_after = np.full(arrays.n, -1.0)
    chain: list[tuple[int, int]] = []
    for group in np.nonzero((need > limit).any(axis=1))[0]:
        sequence = lean_sequence(arrays, int(group))
        _follow(arrays, int(group), sequence, need, need_after, chain)
    if (need > limit).any():
        raise _infeasible(arrays, need, limit)
    return Admission(limit, need, claim, need_after, tuple(chain))


def lean_sequence(arrays: Arrays, group: int) -> list[int]:
    """A running order of one group that keeps memory low: releases first, else deepest first."""
    members = np.nonzero(arrays.group == group)[0].tolist()
    waiting = {task: int(arrays.pred_ptr[task + 1] - arrays.pred_ptr[task]) for task in members}
    net = arrays.acquire - arrays.release
    key = {task: (bool(net[task] > 0), -int(arrays.depth[task]), int(arrays.priority[task])) for task in members}
    ready = [task for task in members if not waiting[task]]
    sequence: list[int] = []
    while ready:
        task = min(ready, key=key.__getitem__)
        ready.remove(task)
        sequence.append(task)
        for after in arrays.succ[arrays.succ_ptr[task] : arrays.succ_ptr[task + 1]].tolist():
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    return sequence


def _follow(
    arrays: Arrays,
    group: int,
    sequence: list[int],
    need: Floats,
    need_after: Floats,
    chain: list[tuple[int, int]],
) -> None:
    """Bind a group to its lean sequence: exact needs on every rank, and the edges that hold it."""
    for rank in range(arrays.ranks):
        own = [task for task in sequence if arrays.rank[task] == rank]
        acquire, release = arrays.acquire[own], arrays.release[own]
        held = np.cumsum(acquire - release)
        peaks = np.concatenate([[0.0], held])[:-1] + acquire if own else np.zeros(0)
        above = np.maximum.accumulate(peaks[::-1])[::-1]
        need[group, rank] = above[0] if own else 0.0
        for position, task in enumerate(own):
            need_after[task] = max(0.0, above[position + 1] - held[position]) if position + 1 < len(own) else 0.0
        chain.extend(itertools.pairwise(own))


def _infeasible(arrays: Arrays, need: Floats, limit: Floats) -> InfeasibleError:
    """Name the microbatch and rank that do not fit, and capacities at which all do."""
    enough = need.copy()
    for group in range(len(need)):
        _follow(arrays, group, lean_sequence(arrays, group), enough, np.full(arrays.n, -1.0), [])
    sufficient = np.maximum(enough.max(axis=0), arrays.acquire.max())
    over = np.nonzero(arrays.acquire > limit[arrays.rank])[0]
    if len(over):
        task = over[0]
        reason = (
            f"task {arrays.id[task]} of microbatch {arrays.microbatch[task]} acquires {arrays.acquire[task]:g} "
            f"on rank {arrays.rank[task]}, whose capacity is {arrays.capacity[arrays.rank[task]]:g}"
        )
    else:
        group, rank = (int(value) for value in np.argwhere(need > limit)[0])
        microbatch = int(arrays.microbatch[arrays.group == group].min())
        reason = (
            f"microbatch {microbatch} alone needs {need[group, rank]:g} on rank {rank}, "
            f"whose capacity is {arrays.capacity[rank]:g}"
        )
    capacity = tuple(
        None if np.isinf(old) else float(max(old, new)) for old, new in zip(arrays.capacity, sufficient, strict=True)
    )
    return InfeasibleError(f"{reason}; raise the capacity or make its stages smaller", capacity)
