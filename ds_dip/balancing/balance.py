"""The best assignment that is found in a budget, with its distance from what no assignment is below."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ds_dip.balancing.bounds import lower_bound
from ds_dip.balancing.heuristics import differencing, improved, longest_first
from ds_dip.balancing.problem import Ints, Loads

#: Pairs of items that the exchanges look at: some 30 ms of one core at most.
BUDGET = 1 << 22
#: How far above the bound the exchanges aim, one after the other. Far below a percent nobody sees the difference.
_GOALS = (1.005, 1.001)
#: Items times buckets up to which differencing is worth its time.
_SMALL = 1 << 15


@dataclass(frozen=True, slots=True)
class Balance:
    """Items of each bucket, ascending; seconds of the fullest one and the bound that none is below.

    ``method`` says what found it: "lpt", "karmarkar-karp", "exchanges" or "exact".
    """

    groups: tuple[tuple[int, ...], ...]
    makespan: float
    lower_bound: float
    method: str

    @property
    def gap(self) -> float:
        """How far the fullest bucket may be above the best: a share of the bound."""
        return self.makespan / self.lower_bound - 1 if self.lower_bound > 0 else 0.0


def balance(loads: Loads, budget: int = BUDGET) -> Balance:
    """Put items into buckets so that the fullest bucket, on its busiest resource, is as little as can be found.

    Longest first, then exchanges of items; where that stays above the bound and there are few items, also from
    Karmarkar and Karp's. Never worse than longest first; no bucket is above its memory, and none is empty where there
    are as many items. The same on every machine: ``budget`` counts pairs of items that exchanges look at, not seconds.
    Raises BalancingError where memory does not allow it.
    """
    bound = lower_bound(loads)
    best, method = longest_first(loads), "lpt"
    starts = [best]
    if loads.capacity is None and loads.items * loads.buckets <= _SMALL and loads.fullest(best) > bound:
        starts.append(differencing(loads))
        if _full(loads, starts[1]) and loads.fullest(starts[1]) < loads.fullest(best):
            best, method = starts[1], "karmarkar-karp"
    for start in starts:
        left = budget // len(starts)
        for goal in _GOALS:
            if loads.fullest(best) <= bound * goal:
                break
            start, left = improved(loads, start, bound * goal, left)
            if _full(loads, start) and loads.fullest(start) < loads.fullest(best):
                best, method = start, "exchanges"
    return made(loads, best, bound, method)


def warm() -> None:
    """Load (on the first use ever: compile) all kernels; a fraction of a second once a process."""
    # An item too many for two even buckets: every kernel has something to do.
    loads = Loads(np.array([[3.0], [3.0], [2.0], [2.0], [2.0]]), 2)
    improved(loads, differencing(loads), lower_bound(loads), BUDGET)
    balance(loads)


def made(loads: Loads, bucket_of: Ints, bound: float, method: str) -> Balance:
    """The value of an assignment: item i is in bucket ``bucket_of[i]``."""
    order = np.argsort(bucket_of, kind="stable")
    edges = np.searchsorted(bucket_of[order], np.arange(loads.buckets + 1))
    groups = tuple(tuple(order[a:b].tolist()) for a, b in pairwise(edges.tolist()))
    return Balance(groups, loads.fullest(bucket_of), bound, method)


def _full(loads: Loads, bucket_of: Ints) -> bool:
    """Whether no bucket is empty that need not be."""
    return len(np.unique(bucket_of)) == min(loads.buckets, loads.items)
