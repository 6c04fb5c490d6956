from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ds_dip.scheduling import Choice, Pair, Problem, Task, interleave, lower_bound, retime, solve, verify
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


def zigzag(ranks: int, laps: int, microbatches: int, capacity: float) -> Problem:
    """A pipeline of one of T2V-L's blocks a chunk, by its three memory strategies; seconds and GB."""
    tasks: list[Task] = []
    edges: list[tuple[int, int, float]] = []
    pairs: list[Pair] = []
    choices = (Choice(0.0377, 0.0513, 2.48, 1.14), Choice(0.0377, 0.0515, 1.56, 1.5), Choice(0.0377, 0.089, 0.09, 3.52))
    for microbatch in range(microbatches):
        first = len(tasks)
        for chunk in range(ranks * laps):
            lap, place = divmod(chunk, ranks)
            where = place if lap % 2 == 0 else ranks - 1 - place
            for kind, duration, taken, given in (("F", 0.0377, 2.48, 0.0), ("B", 0.0513, 1.14, 3.62)):
                identity = (where, kind, "video", chunk, lap, microbatch, 0)
                tasks.append(Task(len(tasks), *identity, duration, taken, given))
            pairs.append(Pair(len(tasks) - 2, len(tasks) - 1, choices))
        numbers = range(first, len(tasks), 2)
        edges += [(one, other, 0.001) for one, other in itertools.pairwise(numbers)]
        edges += [(other + 1, one + 1, 0.001) for one, other in itertools.pairwise(numbers)]
        edges.append((numbers[-1], numbers[-1] + 1, 0.0))
    return Problem(ranks, (capacity,) * ranks, tuple(tasks), tuple(edges), tuple(pairs))


@pytest.mark.parametrize(("laps", "microbatches", "capacity"), [(1, 3, 4.0), (2, 2, 5.5)])
def test_what_is_found_within_tight_memory_is_optimal_and_the_bound_loose(
    laps: int, microbatches: int, capacity: float
) -> None:
    problem = zigzag(2, laps, microbatches, capacity)
    found = solve(problem, evaluations=200_000)
    proven = prove(problem, found, seconds=60)
    assert proven.makespan == pytest.approx(found.makespan)
    assert proven.lower_bound == pytest.approx(found.makespan, rel=1e-3)
    assert found.lower_bound < 0.91 * found.makespan
