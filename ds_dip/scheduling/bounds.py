"""Lower bounds on the makespan: what no schedule can beat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ds_dip.scheduling.arrays import Arrays, arrays_of
from ds_dip.scheduling.columns import Floats
from ds_dip.scheduling.lifetimes import area_bound
from ds_dip.scheduling.problem import Problem
from ds_dip.scheduling.trading import trade_bounds


def lower_bound(problem: Problem) -> tuple[float, str]:
    """The largest of all bounds and its name: ``chain``, ``head-work-tail``, ``one-machine`` or ``memory-area``."""
    return strongest(arrays_of(problem))


def strongest(arrays: Arrays) -> tuple[float, str]:
    """The largest bound of arrays; pairs count with the least of every value over their choices."""
    if "bound" not in arrays.cache:
        found = bounds(arrays)
        name = max(found, key=found.__getitem__)
        arrays.cache["bound"] = found[name], name
    return arrays.cache["bound"]  # type: ignore[no-any-return]


def bounds(arrays: Arrays) -> dict[str, float]:
    """Every bound by name; the first listed wins a tie."""
    if not arrays.n:
        return {"chain": 0.0}
    least = optimistic(arrays)
    head, tail = heads(least), tails(least)
    found = {
        "chain": float((head + least.duration + tail).max()),
        "head-work-tail": _head_work_tail(least, head, tail),
        "one-machine": max(_one_machine(least, head, tail, rank) for rank in range(least.ranks)),
        "memory-area": area_bound(least, head, tail),
    }
    found["memory-time"], found["memory-ends"] = trade_bounds(arrays, least, head, tail, max(found.values()))
    return found


def optimistic(arrays: Arrays) -> Arrays:
    """Every pair with the least duration and memory that any of its choices has, each on its own."""
    pairs = arrays.problem.pairs
    if not pairs:
        return arrays
    duration, acquire, release = arrays.duration.copy(), arrays.acquire.copy(), arrays.release.copy()
    for (forward, backward, weight), pair in zip(arrays.pairs.tolist(), pairs, strict=True):
        duration[forward] = min(choice.forward_duration for choice in pair.choices)
        duration[backward] = min(choice.backward_duration for choice in pair.choices)
        acquire[forward] = min(choice.memory for choice in pair.choices)
        acquire[backward] = release[backward] = 0.0
        last = backward
        if weight >= 0:
            last = weight
            acquire[weight] = 0.0
            duration[weight] = min(choice.weight_duration or 0.0 for choice in pair.choices)
        release[last] = acquire[forward]
    return replace(arrays, duration=duration, acquire=acquire, release=release, cache={})


def heads(arrays: Arrays) -> Floats:
    """Earliest start of every task by the edges alone, shape (n,)."""
    from ds_dip.scheduling import kernels

    return kernels.reach(
        arrays.topo, arrays.succ_ptr, arrays.succ, arrays.succ_delay, arrays.duration, np.zeros(arrays.n)
    )


def tails(arrays: Arrays) -> Floats:
    """Time that must follow every task's end, by the edges and its own tail, shape (n,)."""
    from ds_dip.scheduling import kernels

    return kernels.reach(
        arrays.topo[::-1].copy(), arrays.pred_ptr, arrays.pred, arrays.pred_delay, arrays.duration, arrays.tail
    )


def _head_work_tail(arrays: Arrays, head: Floats, tail: Floats) -> float:
    best = 0.0
    for rank in range(arrays.ranks):
        own = arrays.rank == rank
        if own.any():
            best = max(best, float(head[own].min() + arrays.duration[own].sum() + tail[own].min()))
    return best


def _one_machine(arrays: Arrays, head: Floats, tail: Floats, rank: int) -> float:
    """Jackson's preemptive schedule of one rank: optimal with preemption."""
    from ds_dip.scheduling import kernels

    own = np.nonzero(arrays.rank == rank)[0]
    own = own[np.argsort(head[own], kind="stable")]
    return float(kernels.preemptive(head[own], arrays.duration[own], tail[own]))
