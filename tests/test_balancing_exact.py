"""Proofs: the best of all on small loads, never worse than what they begin with."""

from __future__ import annotations

import numpy as np
import pytest

from ds_dip.balancing import Loads, balance
from ds_dip.balancing.balance import Balance
from ds_dip.balancing.exact import prove
from ds_dip.balancing.heuristics import round_robin
from tests.balancing_cases import best_of_all, buckets_of


@pytest.mark.parametrize(("seed", "resources"), [(0, 1), (1, 2), (2, 3)])
def test_it_finds_the_best_of_all(seed: int, resources: int) -> None:
    own = Loads(np.random.default_rng(seed).gamma(2.0, 1.0, (9, resources)), 3)
    found = prove(own, balance(own), 20.0)
    best = best_of_all(own)
    assert found.makespan == pytest.approx(best, rel=3e-6)
    assert found.lower_bound <= best * (1 + 1e-12)
    assert found.gap <= 1e-5


def test_it_keeps_to_the_memory_and_leaves_no_bucket_empty() -> None:
    own = Loads(np.array([[4.0], [4.0], [1.0], [1.0]]), 2, np.array([1.0, 1.0, 3.0, 3.0]), 4.0)
    found = prove(own, balance(own), 10.0)
    assert own.fits(buckets_of(found.groups))
    assert all(found.groups)
    assert found.makespan == 5.0


def test_out_of_time_it_returns_what_it_was_given() -> None:
    own = Loads(np.random.default_rng(0).gamma(2.0, 1.0, (200, 2)), 20)
    start = round_robin(own)
    groups = tuple(tuple(np.flatnonzero(start == bucket).tolist()) for bucket in range(20))
    given = Balance(groups, own.fullest(start), 1.0, "round-robin")
    found = prove(own, given, 1e-3)
    assert found.makespan <= given.makespan
    assert sorted(item for group in found.groups for item in group) == list(range(200))
