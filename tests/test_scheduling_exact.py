from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ds_dip.scheduling import Problem, interleave, lower_bound, retime, solve, verify
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


def fixed(problem: Problem, choices: tuple[int, ...]) -> Problem:
    """The problem with one choice a pair."""
    pairs = tuple(
        replace(pair, choices=(pair.choices[number],)) for pair, number in zip(problem.pairs, choices, strict=True)
    )
    return replace(problem, pairs=pairs)


@pytest.mark.parametrize("cap", [1.0, 1.2, 1.6])
def test_choices_of_pairs_are_proven_with_the_order(cap: float) -> None:
    problem = strategic(uniform(2, 1, 2, forward=2.0, backward=4.0, cap=cap))
    result = prove(problem, solve(problem, evaluations=50), seconds=30)
    assert verify(problem, result.plan()) == []
    each = []
    for choices in itertools.product(*(range(len(pair.choices)) for pair in problem.pairs)):
        single = solve(fixed(problem, choices), evaluations=200)
        if single.schedule is not None:
            each.append(prove(fixed(problem, choices), single, seconds=10))
    assert all(own.status == "optimal" for own in each)
    assert (result.makespan, result.status) == (min(own.makespan for own in each), "optimal")


def test_a_worse_choice_to_begin_with_is_left() -> None:
    problem = strategic(replace(uniform(2, 1, 3), memory_capacity=(2.0, 2.0)))
    schedule = replace(interleave(problem), choices=(2,) * len(problem.pairs))
    slow = replace(solve(problem, evaluations=10), schedule=schedule, timeline=retime(problem, schedule))
    slow = replace(slow, makespan=retime(problem, schedule).makespan, status="feasible")
    result = prove(problem, slow, seconds=20)
    assert result.status == "optimal"
    assert result.makespan < slow.makespan
    assert verify(problem, result.plan()) == []


@pytest.mark.parametrize("seed", range(10))
def test_no_proven_optimum_with_choices_is_below_a_bound(seed: int) -> None:
    problem = build(seed, ranks=2, microbatches=2, cap=(0.6, 0.8, 1.0)[seed % 3], weights=seed % 4 == 3, choices=True)
    result = prove(problem, solve(problem, evaluations=2000), seconds=1)
    assert lower_bound(problem)[0] <= result.makespan * (1 + 1e-9)
    # CP-SAT's own bound is a proof as well: where it is the optimum, no bound of ours is above it.
    if result.status == "optimal":
        assert lower_bound(problem)[0] <= result.lower_bound * (1 + 1e-6)
