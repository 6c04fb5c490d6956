"""Each way to balance puts every item somewhere, and does what it is known for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.balancing import METHODS, BalancingError, Loads
from ds_dip.balancing.heuristics import differencing, improved, longest_first, round_robin
from tests.balancing_cases import loads


@settings(deadline=None)
@given(loads(), st.sampled_from(sorted(METHODS)))
def test_every_item_is_in_a_bucket(own: Loads, method: str) -> None:
    found = METHODS[method](own)
    assert found.shape == (own.items,)
    assert found.min() >= 0
    assert found.max() < own.buckets


@settings(deadline=None)
@given(loads())
def test_longest_first_leaves_no_bucket_empty_that_need_not_be(own: Loads) -> None:
    assert len(set(longest_first(own).tolist())) == min(own.items, own.buckets)


@settings(deadline=None)
@given(loads(memory=True))
def test_longest_first_keeps_to_the_memory_or_says_what_does_not_fit(own: Loads) -> None:
    try:
        found = longest_first(own)
    except BalancingError:
        with pytest.raises(BalancingError, match="fits into none of"):
            longest_first(own)
        return
    assert own.fits(found)


@pytest.mark.parametrize(
    ("items", "buckets", "lpt", "differenced"),
    [
        ([3.0, 3.0, 2.0, 2.0, 2.0], 2, 7.0, 7.0),
        ([8.0, 7.0, 6.0, 5.0, 4.0], 2, 17.0, 16.0),  # Karmarkar and Karp's own example
        ([5.0, 5.0, 4.0, 4.0, 3.0, 3.0, 3.0], 3, 11.0, 10.0),
    ],
)
def test_known_answers(items: list[float], buckets: int, lpt: float, differenced: float) -> None:
    own = Loads(np.array(items).reshape(-1, 1), buckets)
    assert own.fullest(longest_first(own)) == lpt
    assert own.fullest(differencing(own)) == differenced


def test_round_robin_looks_at_no_cost() -> None:
    assert round_robin(Loads(np.array([[9.0], [0.0], [9.0], [0.0]]), 2)).tolist() == [0, 1, 0, 1]


@settings(deadline=None)
@given(loads(memory=True), st.floats(1.0, 1.5))
def test_exchanges_lower_what_is_above_the_goal_and_keep_to_the_memory(own: Loads, factor: float) -> None:
    try:
        start = longest_first(own)
    except BalancingError:
        return
    goal = own.fullest(start) / factor
    found, left = improved(own, start, goal, 1 << 16)
    assert left <= 1 << 16
    assert own.fits(found)
    assert len(set(found.tolist())) == len(set(start.tolist()))

    def above(bucket_of: np.ndarray) -> float:
        over = np.maximum(own.totals(bucket_of) - int(goal / own.grid.unit), 0).astype(np.float64)
        return float((over**2).sum())

    assert above(found) <= above(start) * (1 + 1e-9)


def test_exchanges_end_with_their_budget() -> None:
    random = np.random.default_rng(0)
    own = Loads(random.gamma(2.0, 1.0, (200, 2)), 10)
    start = round_robin(own)
    few, left = improved(own, start, own.fullest(start) / 2, 500)
    assert left <= 0
    assert (few != start).sum() <= 4
