from __future__ import annotations

from dataclasses import replace

import pytest

from ds_dip.scheduling import solve, verify
from ds_dip.scheduling.instances import strategic, unequal, uniform
from tests.scheduling_cases import build

pytest.importorskip("ortools")
from ds_dip.scheduling.exact import prove


@pytest.mark.parametrize(("ranks", "cap", "seed", "optimum"), [(2, 2, 873654221, 1233), (3, 3, 379008056, 1150)])
def test_a_small_problem_is_proven_optimal(ranks: int, cap: float, seed: int, optimum: float) -> None:
    problem = unequal(ranks, 1, 6, seed, cap)
    result = prove(problem, solve(problem, evaluations=20_000), seconds=30)
    assert (result.makespan, result.status, result.bound_name) == (optimum, "optimal", "cp-sat")
    assert result.schedule is not None
    assert verify(problem, result.plan()) == []


def test_times_that_are_no_whole_numbers_keep_a_true_bound() -> None:
    problem = build(3, ranks=2, microbatches=2, cap=1.2)
    searched = solve(problem, evaluations=20_000)
    result = prove(problem, searched, seconds=20)
    assert searched.lower_bound <= result.lower_bound <= result.makespan <= searched.makespan
    assert result.gap < 1e-4
    assert verify(problem, result.plan()) == []


def test_an_optimal_result_is_returned_as_it_is() -> None:
    problem = uniform(2, 1, 3)
    result = solve(problem, evaluations=10)
    assert prove(problem, result, seconds=1) is result


def test_pairs_with_several_choices_are_refused() -> None:
    problem = strategic(replace(uniform(2, 1, 3), memory_capacity=(2.0, 2.0)))
    with pytest.raises(ValueError, match="proofs take one choice a pair"):
        prove(problem, solve(problem, evaluations=10), seconds=1)
