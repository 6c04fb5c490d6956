"""Ways to balance, from the simplest: each gives the bucket of every item."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ds_dip.balancing.problem import BalancingError, Ints, Loads


def round_robin(loads: Loads) -> Ints:
    """Item i into bucket i modulo buckets, whatever it costs: what a trainer does that does not look."""
    return np.arange(loads.items, dtype=np.int64) % loads.buckets


def longest_first(loads: Loads) -> Ints:
    """Longest processing time first, into the bucket whose busiest resource is then least (DFLOP's way out).

    Once by the work of all resources in sum, once by that of the busiest one, and the better of both. Under a memory
    limit, items of most bytes first where neither fits.
    Raises BalancingError where no order fits.
    """
    work, grid = loads.grid.work, loads.grid
    tried = [_listed(loads, key) for key in (work.sum(axis=1), work.max(axis=1))]
    found = [bucket_of for bucket_of, missing in tried if missing < 0]
    if not found:
        bucket_of, missing = _listed(loads, grid.memory)
        if missing >= 0:
            raise BalancingError(
                f"item {missing} of {grid.memory[missing]:,} bytes fits into none of {loads.buckets} buckets beside "
                f"the others ({grid.memory.sum():,} bytes in all, {grid.capacity:,} a bucket): use more buckets"
            )
        found = [bucket_of]
    return min(found, key=loads.fullest)


def differencing(loads: Loads) -> Ints:
    """Karmarkar and Karp's differencing on the work in sum; it looks at no memory."""
    from ds_dip.balancing import kernels

    bucket_of = np.zeros(loads.items, np.int64)
    if loads.items:
        kernels.differencing(loads.grid.work, falling(loads.grid.work.sum(axis=1)), loads.buckets, bucket_of)
    return bucket_of


def improved(loads: Loads, bucket_of: Ints, goal: float, budget: int) -> tuple[Ints, int]:
    """Exchange items until no bucket is above ``goal`` seconds; the buckets, and what is left of ``budget``.

    Where that fails the result may be worse than what it began with: what is far above is evened out first.
    """
    from ds_dip.balancing import kernels

    grid, result = loads.grid, bucket_of.copy()
    held = np.zeros(loads.buckets, np.int64)
    np.add.at(held, result, grid.memory)
    total = loads.totals(result)
    left = kernels.improve(grid.work, grid.memory, grid.capacity, result, total, held, int(goal / grid.unit), budget)
    return result, int(left)


def falling(keys: Ints) -> Ints:
    """Items by falling key, the first of equals first."""
    return np.argsort(-keys, kind="stable").astype(np.int64)


def _listed(loads: Loads, key: Ints) -> tuple[Ints, int]:
    from ds_dip.balancing import kernels

    grid = loads.grid
    bucket_of = np.zeros(loads.items, np.int64)
    total, held = np.zeros((loads.buckets, loads.resources), np.int64), np.zeros(loads.buckets, np.int64)
    missing = kernels.longest_first(grid.work, grid.memory, grid.capacity, falling(key), bucket_of, total, held)
    return bucket_of, int(missing)


#: By name, in the order in which they are compared.
METHODS: Mapping[str, Callable[[Loads], Ints]] = {
    "round-robin": round_robin,
    "lpt": longest_first,
    "karmarkar-karp": differencing,
}
