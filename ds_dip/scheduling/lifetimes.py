"""How long memory must be held: the area (memory x time) that no schedule can avoid."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ds_dip.scheduling.arrays import Arrays, numbered
from ds_dip.scheduling.columns import Floats, Ints


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

    source, target, mass = lifetimes(arrays)
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


def lifetimes(arrays: Arrays) -> tuple[Ints, Ints, Floats]:
    """Memory from the task that acquires it to one that releases it: sources, targets and masses, shape (k,).

    A stage's own backward (weight gradient) comes first, then any later task of the microbatch on
    the rank. A microbatch whose memory cannot be matched so counts only while its tasks run.
    """
    at_once = np.minimum(arrays.acquire, arrays.release)
    kept, freed = arrays.acquire - at_once, arrays.release - at_once
    stage = numbered(arrays.rank, arrays.module, arrays.chunk, arrays.microbatch, arrays.sub)
    last = np.full((int(stage.max(initial=-1)) + 1, 3), -1, dtype=np.int64)
    last[stage, arrays.kind] = np.arange(arrays.n)
    weight, backward = last[stage, 2], last[stage, 1]
    partner = np.where((weight >= 0) & (freed[weight] > 0), weight, backward)
    keeps = kept > 1e-12 * arrays.acquire
    alike = np.abs(freed[partner] - kept) <= 1e-12 * kept
    plain = (partner >= 0) & alike & (arrays.depth[partner] > arrays.depth)
    shared = np.bincount(partner[keeps & plain], minlength=arrays.n) > 1
    odd = keeps & ~(plain & ~shared[partner])
    row = numbered(arrays.microbatch, arrays.rank)
    rest = np.isin(row, row[odd])
    whole, source = (np.nonzero(~rest & mask)[0] for mask in (at_once > 0, keeps))
    others = _matched(arrays, stage, np.nonzero(rest)[0])
    return (
        np.concatenate([whole, source, np.array([entry[0] for entry in others], dtype=np.int64)]),
        np.concatenate([whole, partner[source], np.array([entry[1] for entry in others], dtype=np.int64)]),
        np.concatenate([at_once[whole], np.minimum(kept, freed[partner])[source], [entry[2] for entry in others]]),
    )


def _matched(arrays: Arrays, stage: Ints, tasks: Ints) -> list[tuple[int, int, float]]:
    """Lifetimes of tasks whose stages do not simply keep memory from one task to another."""
    number = stage.tolist()
    last = {key: task for task, key in enumerate(zip(number, arrays.kind.tolist(), strict=True))}
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for task in tasks[(arrays.acquire[tasks] > 0) | (arrays.release[tasks] > 0)].tolist():
        rows[int(arrays.microbatch[task]), int(arrays.rank[task])].append(task)
    found: list[tuple[int, int, float]] = []
    for members in rows.values():
        open_mass = {task: float(arrays.acquire[task]) for task in members}
        free = {task: float(arrays.release[task]) for task in members}
        matched: list[tuple[int, int, float]] = []
        for task in members:
            partners = [task, last.get((number[task], 2)), last.get((number[task], 1))]
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
