"""Loads for tests of balancing: small ones from Hypothesis, and real ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ds_dip.balancing import Loads
from ds_dip.balancing.problem import Floats, Ints


@st.composite
def loads(draw: st.DrawFn, most: int = 24, memory: bool = False) -> Loads:
    """Up to ``most`` items on one to three resources; with ``memory``, under a limit that may not be kept."""
    items, resources = draw(st.integers(1, most)), draw(st.integers(1, 3))
    values = st.one_of(st.integers(0, 9).map(float), st.floats(0, 1000))
    seconds = draw(st.lists(st.lists(values, min_size=resources, max_size=resources), min_size=items, max_size=items))
    buckets = draw(st.integers(1, 8))
    if not memory:
        return Loads(np.array(seconds), buckets)
    held = np.array(draw(st.lists(st.integers(0, 100), min_size=items, max_size=items)), dtype=np.float64)
    slack = draw(st.floats(1.0, 3.0))
    return Loads(np.array(seconds), buckets, held, float(max(1.0, held.max(), held.sum() / buckets * slack)))


def buckets_of(groups: tuple[tuple[int, ...], ...]) -> Ints:
    """Which bucket each item is in."""
    found = np.full(sum(map(len, groups)), -1, np.int64)
    for bucket, group in enumerate(groups):
        found[list(group)] = bucket
    return found


def seconds_of(own: Loads, groups: tuple[tuple[int, ...], ...]) -> float:
    """The fullest bucket on its busiest resource, summed up plainly."""
    return max(float(own.seconds[list(group)].sum(axis=0).max(initial=0.0)) for group in groups)


def best_of_all(own: Loads) -> float:
    """The fullest bucket of the best assignment, every one of them tried."""
    best = np.inf

    def put(item: int, totals: Floats) -> None:
        nonlocal best
        if totals.max(initial=0.0) >= best:
            return
        if item == own.items:
            best = float(totals.max(initial=0.0))
            return
        tried = set()
        for bucket in range(own.buckets):
            if (before := tuple(totals[bucket])) in tried:
                continue
            tried.add(before)
            totals[bucket] += own.seconds[item]
            put(item + 1, totals)
            totals[bucket] = before

    put(0, np.zeros((own.buckets, own.resources)))
    return best
