"""How long memory must be held: the area (memory x time) that no schedule can avoid."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ds_dip.scheduling.arrays import Arrays, Floats, Ints, numbered


def area_bound(arrays: Arrays, head: Floats, tail: Floats) -> float:
    """Least area of a rank over its capacity, after its least head and before its least tail."""
    best = 0.0
    if np.isinf(arrays.capacity).all():
        return best
    held = residences(arrays)
    for rank in range(arrays.ranks):
        capacity = float(arrays.capacity[rank])
        own = (arrays.rank == rank) & ((arrays.acquire > 0) | (arrays.release > 0))
        if np.isinf(capacity) or not capacity or not own.any():
            continue
        best = max(best, float(head[own].min() + held[rank] / capacity + tail[own].min()))
    return best


def residences(arrays: Arrays) -> list[float]:
    """Least memory x time on every rank: each acquire until its release, along the longest path between."""
    from ds_dip.scheduling import kernels

    pairs = lifetimes(arrays)
    source, target = (np.array([pair[end] for pair in pairs], dtype=np.int64) for end in (0, 1))
    mass = np.array([pair[2] for pair in pairs])
    order, at = grouped(arrays)
    time = kernels.longest(order, at, arrays.succ_ptr, arrays.succ, arrays.succ_delay, arrays.duration, source, target)
    return [float(area) for area in np.bincount(arrays.rank[source], mass * time, minlength=arrays.ranks)]


def grouped(arrays: Arrays) -> tuple[Ints, Ints]:
    """A topological order that keeps groups together, and every task's place in it."""
    at = np.empty(arrays.n, dtype=np.int64)
    at[arrays.topo] = np.arange(arrays.n)
    order = np.lexsort([at, arrays.group])
    at[order] = np.arange(arrays.n)
    return order, at


def lifetimes(arrays: Arrays) -> list[tuple[int, int, float]]:
    """Memory from the task that acquires it to one that releases it: (source, target, mass).

    A stage's own backward (weight gradient) comes first, then any later task of the microbatch on
    the rank. A microbatch whose memory cannot be matched so counts only while its tasks run.
    """
    stage = numbered(arrays.rank, arrays.module, arrays.chunk, arrays.microbatch, arrays.sub).tolist()
    last = {key: task for task, key in enumerate(zip(stage, arrays.kind.tolist(), strict=True))}
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for task in np.nonzero((arrays.acquire > 0) | (arrays.release > 0))[0].tolist():
        rows[int(arrays.microbatch[task]), int(arrays.rank[task])].append(task)
    found: list[tuple[int, int, float]] = []
    for members in rows.values():
        open_mass = {task: float(arrays.acquire[task]) for task in members}
        free = {task: float(arrays.release[task]) for task in members}
        matched: list[tuple[int, int, float]] = []
        for task in members:
            partners = [task, last.get((stage[task], 2)), last.get((stage[task], 1))]
            for target in [partner for partner in partners if partner is not None and partner in free]:
                mass = min(open_mass[task], free[target])
                if mass > 0 and (target == task or arrays.depth[target] > arrays.depth[task]):
                    open_mass[task] -= mass
                    free[target] -= mass
                    matched.append((task, target, mass))
        rest = sum(open_mass.values())
        if rest > 1e-9 * max(float(arrays.acquire[members].sum()), 1e-300):
            matched = [(task, task, float(arrays.acquire[task])) for task in members if arrays.acquire[task] > 0]
        found.extend(matched)
    return found
