"""The bound is below every assignment, and says why the best is where it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from ds_dip.balancing import Loads, lower_bound
from tests.balancing_cases import best_of_all, loads


@settings(deadline=None)
@given(loads(most=8))
def test_no_assignment_is_below_it(own: Loads) -> None:
    assert lower_bound(own) <= best_of_all(own) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("items", "buckets", "bound"),
    [
        ([3.0, 3.0, 3.0, 3.0], 2, 6.0),  # the mean
        ([9.0, 1.0, 1.0], 2, 9.0),  # the heaviest
        ([5.0, 5.0, 5.0, 0.1], 2, 10.0),  # two of the three heaviest share a bucket
        ([0.3] * 7 + [0.6], 4, 0.9),  # 0.675 on average, in steps of 0.3
        ([0.0, 0.0], 2, 0.0),
        ([], 2, 0.0),
    ],
)
def test_each_of_its_reasons(items: list[float], buckets: int, bound: float) -> None:
    assert lower_bound(Loads(np.array(items).reshape(-1, 1), buckets)) == pytest.approx(bound, rel=1e-9)


def test_the_busiest_resource_counts() -> None:
    assert lower_bound(Loads(np.array([[1.0, 9.0], [1.0, 2.0]]), 2)) == pytest.approx(9.0)
