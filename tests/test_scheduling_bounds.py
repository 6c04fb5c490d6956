from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.scheduling import Choice, Pair, Problem, interleave, lower_bound, retime, solve
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.bounds import bounds
from ds_dip.scheduling.instances import strategic, unequal, uniform
from ds_dip.scheduling.mirror import mirrored
from tests.scheduling_cases import problems

quick = settings(max_examples=60, deadline=None)


@quick
@given(problems(choices=True))
def test_no_schedule_beats_a_bound(problem: Problem) -> None:
    makespan = retime(problem, interleave(problem)).makespan
    for value in bounds(arrays_of(problem)).values():
        assert value <= makespan * (1 + 1e-9)


@quick
@given(st.booleans().flatmap(lambda choices: problems(choices=choices, capped=True)))
def test_no_searched_schedule_within_memory_beats_a_bound(problem: Problem) -> None:
    result = solve(problem, evaluations=400)
    for value in bounds(arrays_of(problem)).values():
        assert value <= result.makespan * (1 + 1e-9)


def test_memory_and_work_count_under_one_choice_a_pair() -> None:
    # Keeping all takes memory, recomputing all takes time: each alone is less than both under any choice.
    problem = strategic(uniform(4, 1, 32, cap=2))
    found = bounds(arrays_of(problem))
    assert max(found, key=found.__getitem__) == "memory-time"
    assert found["memory-time"] > 1.08 * max(found["memory-area"], found["head-work-tail"])
    assert found["memory-time"] <= solve(problem, evaluations=2000).makespan


def test_the_ends_of_a_batch_hold_no_more_than_fits() -> None:
    # Until the first backward can start on rank 0, 10 seconds, it runs 3 of 4 forwards; 3 backwards at the end alike.
    problem = uniform(4, 1, 4, cap=3)
    assert bounds(arrays_of(problem))["head-work-tail"] == 21.0
    assert lower_bound(problem) == (pytest.approx(24.0), "memory-ends")
    assert solve(problem, evaluations=2000).makespan >= 24.0


@quick
@given(problems())
def test_the_mirror_has_the_same_bounds(problem: Problem) -> None:
    arrays = arrays_of(problem)
    there, back = bounds(arrays), bounds(mirrored(arrays))
    for name in ("chain", "head-work-tail", "memory-area"):
        assert back[name] == pytest.approx(there[name])


def test_each_bound_can_be_the_largest() -> None:
    assert lower_bound(uniform(4, 1, 1)) == (12.0, "chain")
    assert lower_bound(uniform(4, 1, 8)) == (33.0, "head-work-tail")
    assert lower_bound(unequal(2, 1, 6, 873654221, 1)) == (2124.0, "memory-area")
    late = unequal(3, 1, 6, 5)
    assert lower_bound(late)[0] >= bounds(arrays_of(late))["head-work-tail"]


def test_choices_count_with_the_least_of_every_value() -> None:
    problem = uniform(1, 1, 4)
    pair = tuple(Pair(number, number + 4, (Choice(1.0, 4.0, 0.5), Choice(1.5, 2.0, 1.0))) for number in range(4))
    assert lower_bound(replace(problem, pairs=pair)) == (12.0, "head-work-tail")


def test_tails_are_part_of_the_bound() -> None:
    problem = uniform(2, 1, 2)
    tasks = tuple(replace(task, tail=10.0) if task.kind == "B" else task for task in problem.tasks)
    assert lower_bound(replace(problem, tasks=tasks))[0] >= 19.0
