from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.scheduling import (
    InfeasibleError,
    Problem,
    Schedule,
    ScheduleError,
    Task,
    interleave,
    retime,
    retime_many,
    verify,
)
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.instances import unequal, uniform
from ds_dip.scheduling.mirror import mirrored
from ds_dip.scheduling.timing import first_come, fits, positions, starts
from tests.scheduling_cases import build, problems, renumbered, scaled

quick = settings(max_examples=40, deadline=None)


@quick
@given(problems())
def test_interleaving_never_gets_stuck_and_passes_the_check(problem: Problem) -> None:
    assert verify(problem, interleave(problem)) == []


@pytest.mark.parametrize("cap", [1.0, 1.05, 1.3])
def test_tight_memory_never_blocks_the_interleaving(cap: float) -> None:
    for seed in range(40):
        problem = build(seed, ranks=3, microbatches=6, cap=cap)
        assert verify(problem, interleave(problem)) == []


def test_a_microbatch_that_fits_only_in_a_lean_sequence_is_run_in_it() -> None:
    tasks = []
    edges = []
    for sub in range(3):
        tasks += [
            Task(2 * sub, 0, "F", "vision", 0, 0, 0, sub, 1.0, acquire=4.0),
            Task(2 * sub + 1, 0, "F", "merge", 0, 0, 0, sub, 1.0, acquire=0.0, release=4.0),
        ]
        edges.append((2 * sub, 2 * sub + 1, 0.0))
    problem = Problem(1, (4.0,), tuple(tasks), tuple(edges))
    schedule = interleave(problem)
    assert verify(problem, schedule) == []
    assert retime(problem, schedule).peak_memory == (4.0,)


def test_a_task_above_capacity_is_infeasible_with_a_reason_and_a_sufficient_capacity() -> None:
    problem = uniform(2, 2, 3, cap=1.0)
    with pytest.raises(InfeasibleError, match="microbatch 0 alone needs 2 on rank 0") as caught:
        interleave(problem)
    enough = replace(problem, memory_capacity=caught.value.sufficient_capacity)
    assert verify(enough, interleave(enough)) == []
    with pytest.raises(InfeasibleError, match="acquires 1 on rank 0, whose capacity is 0.5"):
        interleave(uniform(2, 1, 3, cap=0.5))


@quick
@given(problems(capped=True))
def test_the_sufficient_capacity_is_sufficient(problem: Problem) -> None:
    tight = replace(problem, memory_capacity=tuple(0.4 * (limit or 0.0) for limit in problem.memory_capacity))
    try:
        interleave(tight)
    except InfeasibleError as error:
        enough = replace(problem, memory_capacity=error.sufficient_capacity)
        assert verify(enough, interleave(enough)) == []


@quick
@given(problems(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_time_scales(problem: Problem, factor: float) -> None:
    schedule = interleave(problem)
    longer = scaled(problem, factor)
    assert interleave(longer) == schedule
    assert retime(longer, schedule).makespan == pytest.approx(factor * retime(problem, schedule).makespan)


@quick
@given(problems(), st.data())
def test_a_longer_task_never_shortens_a_fixed_order(problem: Problem, data: st.DataObject) -> None:
    schedule = interleave(problem)
    task = data.draw(st.sampled_from(problem.tasks))
    longer = replace(
        problem, tasks=tuple(replace(own, duration=own.duration + 1) if own is task else own for own in problem.tasks)
    )
    assert retime(longer, schedule).makespan >= retime(problem, schedule).makespan


@quick
@given(problems(capped=False))
def test_enough_memory_makes_memory_irrelevant(problem: Problem) -> None:
    ample = replace(problem, memory_capacity=(sum(task.acquire for task in problem.tasks) + 1,) * problem.ranks)
    assert interleave(ample) == interleave(problem)


@quick
@given(problems(), st.integers(0, 100))
def test_renumbering_ids_changes_nothing(problem: Problem, seed: int) -> None:
    other, new = renumbered(problem, seed)
    schedule = interleave(problem)
    assert interleave(other).order == tuple(tuple(new[task] for task in order) for order in schedule.order)


@quick
@given(problems())
def test_an_order_read_backwards_takes_as_long_in_the_mirror(problem: Problem) -> None:
    arrays = arrays_of(problem)
    orders = first_come(arrays)
    mirror = mirrored(arrays)
    backwards = [order[::-1] for order in orders]
    there = (starts(arrays, orders) + arrays.duration).max()
    assert (starts(mirror, backwards) + arrays.duration).max() == pytest.approx(there)
    assert fits(mirror, backwards)


@quick
@given(problems(capped=False), st.integers(1, 5))
def test_many_duration_vectors_give_the_makespans_of_re_timing_each(problem: Problem, many: int) -> None:
    schedule = interleave(problem)
    durations = np.random.default_rng(0).uniform(0, 3, (len(problem.tasks), many))
    expected = []
    for column in range(many):
        tasks = tuple(replace(task, duration=float(durations[row, column])) for row, task in enumerate(problem.tasks))
        expected.append(retime(replace(problem, tasks=tasks), schedule).makespan)
    assert retime_many(problem, schedule, durations) == pytest.approx(expected)


def test_tails_count_in_the_makespan() -> None:
    problem = uniform(1, 1, 1)
    late = replace(problem, tasks=(*problem.tasks[:1], replace(problem.tasks[1], tail=5.0)))
    assert retime(late, interleave(late)).makespan == 8.0


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (((0, 1, 2, 3),), "has 1 ranks"),
        (((0, 1, 2), (3, 4, 5, 6, 7)), "task 3 is never run|lives on"),
        (((0, 1, 4, 5), (2, 3, 6, 99)), "task 99, which the problem does not have"),
        (((0, 0, 4, 5), (2, 3, 6, 7)), "runs twice"),
        (((4, 5, 0, 1), (2, 3, 6, 7)), "the order contradicts the edges"),
    ],
)
def test_a_schedule_that_does_not_fit_the_problem_is_refused(order: tuple[tuple[int, ...], ...], reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        retime(uniform(2, 1, 2), Schedule(order))


def test_no_tasks_and_one_task_are_problems_too() -> None:
    empty = Problem(2, (None, 1.0), (), ())
    assert retime(empty, interleave(empty)).makespan == 0.0
    single = Problem(1, (None,), (Task(7, 0, "F", "backbone", 0, 0, 0, 0, 3.0),), ())
    assert retime(single, interleave(single)).end == {7: 3.0}


def test_positions_follow_identity_not_ids() -> None:
    problem = unequal(2, 1, 3, 5)
    other, new = renumbered(problem, 1)
    schedule = interleave(problem)
    moved = Schedule(tuple(tuple(new[task] for task in order) for order in schedule.order))
    assert positions(arrays_of(problem), schedule) == positions(arrays_of(other), moved)
