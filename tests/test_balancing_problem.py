"""Loads: what is refused, and whole units that lose nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from ds_dip.balancing import BalancingError, Loads
from tests.balancing_cases import loads


@pytest.mark.parametrize(
    ("seconds", "buckets", "memory", "capacity", "sentence"),
    [
        ([[1.0]], 0, None, None, "buckets is 0, expected at least 1"),
        ([1.0], 1, None, None, r"shape \(1,\), expected \(items, resources\)"),
        ([[1.0], [-1.0]], 1, None, None, "item 1 has seconds .* finite and not negative"),
        ([[1.0], [np.nan]], 1, None, None, "item 1 has seconds"),
        ([[1e308], [1e308]], 1, None, None, "beyond what a float holds"),
        ([[1.0]], 1, [1.0], None, "go together"),
        ([[1.0]], 1, [1.0, 2.0], 5.0, r"memory has shape \(2,\), expected \(1,\)"),
        ([[1.0]], 1, [np.inf], 5.0, "item 0 has memory inf"),
        ([[1.0]], 1, [1.0], 0.5, "capacity is 0.5, expected 1 to"),
        ([[1.0]], 1, [1.0], np.nan, "capacity is nan"),
        ([[1.0], [1.0]], 1, [1.0, 7.0], 5.0, "item 1 needs 7 bytes and a bucket has 5"),
    ],
)
def test_what_cannot_be_balanced_is_refused(
    seconds: list[list[float]], buckets: int, memory: list[float] | None, capacity: float | None, sentence: str
) -> None:
    with pytest.raises(BalancingError, match=sentence):
        Loads(np.array(seconds), buckets, None if memory is None else np.array(memory), capacity)


@given(loads(memory=True))
def test_whole_units_are_the_seconds(own: Loads) -> None:
    grid = own.grid
    total = own.seconds.sum(axis=0).max()
    assert np.abs(grid.work * grid.unit - own.seconds).max() <= 2.0**-51 * total
    assert (grid.memory >= own.memory).all()
    assert grid.capacity <= own.capacity
    assert grid.work.sum(axis=0).max() < 2**53


@given(loads())
def test_totals_are_exact_in_any_order(own: Loads) -> None:
    bucket_of = np.arange(own.items) % own.buckets
    turned = Loads(own.seconds[::-1].copy(), own.buckets)
    assert (own.totals(bucket_of) == turned.totals(bucket_of[::-1].copy())).all()


def test_no_item_is_a_load() -> None:
    assert Loads(np.zeros((0, 2)), 3).fullest(np.zeros(0, np.int64)) == 0.0
