"""What no assignment is below."""

from __future__ import annotations

import numpy as np

from ds_dip.balancing.problem import Ints, Loads

#: Parts of the least value that steps are tried in.
_PARTS = 12
#: How far a value may be from a whole number of steps, of itself.
_CLOSE = 1e-9


def lower_bound(loads: Loads) -> float:
    """Seconds that the fullest bucket has at least on its busiest resource.

    The largest of four, a resource: the mean bucket; the heaviest item; where k items must share a bucket (more than
    (k - 1) x buckets are as heavy as the lightest of them), the lightest k of these; and where all values are whole
    numbers of one step, the mean bucket in whole steps.
    """
    found = 0.0
    for r in range(loads.resources):
        values = np.sort(loads.grid.work[:, r])[::-1]
        if values.size:
            found = max(found, float(_shared(values, loads.buckets)), _stepped(values, loads.buckets))
    return found * loads.grid.unit


def _shared(values: Ints, buckets: int) -> int:
    """Of values in falling order: the mean in whole units, the heaviest, and what some bucket must share."""
    found = max(-(-int(values.sum()) // buckets), int(values[0]))
    sums = np.concatenate(([0], np.cumsum(values)))
    for several in range(2, -(-len(values) // buckets) + 1):
        # Of the heaviest (several - 1) * buckets + 1 values, some bucket has at least ``several``.
        stop = (several - 1) * buckets + 1
        found = max(found, int(sums[stop] - sums[stop - several]))
    return found


def _stepped(values: Ints, buckets: int) -> float:
    """The mean of values that are whole numbers of one step, in whole steps; 0 where they are not."""
    distinct = np.unique(values[values > 0]).astype(np.float64)
    if not distinct.size:
        return 0.0
    for parts in range(1, _PARTS + 1):
        step = distinct[0] / parts
        if (np.abs(distinct - np.rint(distinct / step) * step) <= _CLOSE * distinct).all():
            steps = np.rint(values / step)
            off = float(np.abs(values - steps * step).sum())
            return float(-(-steps.sum() // buckets) * step) - off - 1.0
    return 0.0
