"""Explanations of random schedules: every idle second has one cause, and the critical path is as long as the batch."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.explaining import CAUSES, Bubble, Explanation, explain
from ds_dip.explaining.view import Times
from ds_dip.scheduling import (
    BASELINES,
    BaselineError,
    Problem,
    Schedule,
    ScheduleError,
    Task,
    gpipe,
    interleave,
    lower_bound,
    one_f_one_b,
    retime,
)
from ds_dip.scheduling.instances import pipeline, uniform
from tests.scheduling_cases import problems, renumbered

MANY = hypothesis.settings(deadline=None, max_examples=150)


def with_tails(problem: Problem, seed: int) -> Problem:
    rng = random.Random(seed)
    return replace(problem, tasks=tuple(replace(task, tail=rng.choice((0.0, 0.0, 3.0))) for task in problem.tasks))


def scheduled(problem: Problem, name: str) -> Schedule:
    """A baseline's or the dual queue's order."""
    if name == "dip":
        return interleave(problem)
    try:
        return BASELINES[name](problem)
    except BaselineError:
        hypothesis.reject()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Problem, Schedule]:
    problem = with_tails(draw(problems(choices=draw(st.booleans()))), draw(st.integers(0, 99)))
    return problem, scheduled(problem, draw(st.sampled_from(["dip", *BASELINES])))


def chosen(problem: Problem, schedule: Schedule) -> dict[int, float]:
    """Durations by task with the schedule's choices."""
    found = {task.id: task.duration for task in problem.tasks}
    for pair, number in zip(problem.pairs, schedule.choices, strict=True):
        own = pair.choices[number]
        found |= {pair.forward: own.forward_duration, pair.backward: own.backward_duration}
        if pair.weight is not None:
            found[pair.weight] = own.weight_duration or 0.0
    return found


def check(found: Explanation, busy: Mapping[int, float], intervals: Mapping[int, list[tuple[float, float]]]) -> None:
    """Every rank's time is its tasks and its bubbles, which are disjoint and have one cause each."""
    near = 1e-9 * max(found.makespan, 1e-9)
    for rank in range(len(found.work)):
        own = [bubble for bubble in found.bubbles if bubble.rank == rank]
        assert math.fsum(bubble.seconds for bubble in own) == pytest.approx(found.makespan - busy[rank], abs=10 * near)
        assert math.fsum(found.sums()[rank].values()) == pytest.approx(found.idle(rank), abs=10 * near)
        taken = sorted([*intervals[rank], *((bubble.start, bubble.end) for bubble in own)])
        if not taken:
            # All of its tasks, and all of the batch, take no time.
            assert found.makespan == 0.0
            continue
        assert taken[0][0] <= near
        assert max(end for _, end in taken) == pytest.approx(found.makespan, abs=near)
        for (_, end), (start, _) in itertools.pairwise(taken):
            assert start == pytest.approx(end, abs=near)
    assert {bubble.cause for bubble in found.bubbles} <= set(CAUSES)
    assert all(bubble.seconds > 0 for bubble in found.bubbles)


@MANY
@given(case=cases())
def test_every_idle_second_has_one_cause(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    times, durations = retime(problem, schedule), chosen(*case)
    found = explain(problem, schedule)
    assert found.makespan == pytest.approx(times.makespan, rel=1e-12)
    busy, intervals = dict.fromkeys(range(problem.ranks), 0.0), {rank: [] for rank in range(problem.ranks)}
    for task in problem.tasks:
        busy[task.rank] += durations[task.id]
        if durations[task.id] > 0:
            intervals[task.rank].append((times.start[task.id], times.end[task.id]))
    check(found, busy, intervals)


@MANY
@given(case=cases())
def test_the_critical_path_is_as_long_as_the_batch(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    found, times = explain(problem, schedule), retime(problem, schedule)
    near = 1e-9 * max(found.makespan, 1e-9)
    assert found.length == pytest.approx(times.makespan, abs=near)
    path = found.critical_path
    assert path[0].start == pytest.approx(0.0, abs=near)
    assert path[0].reason == "first"
    tails = {task.id: task.tail for task in problem.tasks}
    assert found.ending == pytest.approx(tails[path[-1].task], abs=near)
    delays = {(before, after): delay for before, after, delay in problem.edges}
    for before, after in itertools.pairwise(path):
        assert after.start == pytest.approx(before.end + after.transfer, abs=near)
        if after.reason in ("data", "transfer"):
            assert after.transfer == pytest.approx(delays[before.task, after.task], abs=near)
        else:
            assert after.reason in ("order", "memory")
            assert (before.rank, after.transfer) == (after.rank, 0.0)
            order = schedule.order[after.rank]
            assert order.index(after.task) == order.index(before.task) + 1


@MANY
@given(case=cases())
def test_missed_work_is_bounded_by_what_orders_could_save(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    found = explain(problem, schedule)
    free = replace(problem, memory_capacity=(None,) * problem.ranks)
    near = 1e-8 * max(found.makespan, 1e-9)
    for sums in found.sums():
        order, memory = sums.get("order", 0.0), sums.get("memory", 0.0)
        assert order <= found.makespan - lower_bound(problem)[0] + near
        assert order + memory <= found.makespan - lower_bound(free)[0] + near
    if all(capacity is None for capacity in problem.memory_capacity):
        assert "memory" not in found.totals()
        assert all(link.reason != "memory" for link in found.critical_path)


@MANY
@given(case=cases())
def test_imbalance_is_at_most_what_a_rank_has_less_to_do(case: tuple[Problem, Schedule]) -> None:
    found = explain(*case)
    for rank, sums in enumerate(found.sums()):
        assert sums.get("imbalance", 0.0) <= max(found.work) - found.work[rank] + 1e-8 * max(found.makespan, 1e-9)


@MANY
@given(case=cases(), seed=st.integers(0, 10**6))
def test_times_that_are_later_than_they_need_to_be_are_explained_too(case: tuple[Problem, Schedule], seed: int) -> None:
    problem, schedule = case
    times = delayed(problem, schedule, seed)
    found = explain(problem, schedule, times)
    tasks = {task.id: task for task in problem.tasks}
    busy, intervals = dict.fromkeys(range(problem.ranks), 0.0), {rank: [] for rank in range(problem.ranks)}
    for task, start in times.start.items():
        busy[tasks[task].rank] += times.end[task] - start
        if times.end[task] > start:
            intervals[tasks[task].rank].append((start, times.end[task]))
    check(found, busy, intervals)
    assert found.length == pytest.approx(found.makespan, rel=1e-9)


def delayed(problem: Problem, schedule: Schedule, seed: int) -> Times:
    """Times in which tasks start up to a second later than they could."""
    rng = random.Random(seed)
    slower = replace(
        problem,
        tasks=tuple(replace(task, duration=task.duration + rng.choice((0.0, rng.random()))) for task in problem.tasks),
        pairs=tuple(
            replace(
                pair,
                choices=tuple(
                    replace(
                        own,
                        forward_duration=own.forward_duration + rng.random(),
                        backward_duration=own.backward_duration + rng.random(),
                    )
                    for own in pair.choices
                ),
            )
            for pair in problem.pairs
        ),
    )
    late, durations = retime(slower, schedule), chosen(problem, schedule)
    end = {task: late.end[task] for task in durations}
    start = {task: end[task] - own for task, own in durations.items()}
    tails = {task.id: task.tail for task in problem.tasks}
    return Times(start, end, max(end[task] + tails[task] for task in end))


def test_a_uniform_pipeline_has_a_ramp_and_nothing_else() -> None:
    problem = uniform(4, 1, 8)
    found = explain(problem, one_f_one_b(problem))
    assert set(found.totals()) == {"ramp-up", "peer", "ramp-down"}
    assert found.sums()[0] == {"peer": 9.0}
    assert found.sums()[3] == {"ramp-up": 3.0, "ramp-down": 6.0}
    assert [link.rank for link in found.critical_path[:4]] == [0, 1, 2, 3]


def test_a_rank_with_less_to_do_waits_by_imbalance() -> None:
    problem = pipeline(2, 1, 5, [[1.0] * 5, [3.0] * 5], [[2.0] * 5, [6.0] * 5])
    found = explain(problem, one_f_one_b(problem))
    assert found.work == (15.0, 45.0)
    assert found.sums()[0]["imbalance"] == pytest.approx(30.0)
    assert "imbalance" not in found.sums()[1]


def test_a_long_microbatch_is_uneven() -> None:
    lengths = [1.0, 1.0, 5.0, 1.0]
    problem = pipeline(2, 1, 4, [lengths, lengths], [[2 * own for own in lengths]] * 2)
    found = explain(problem, one_f_one_b(problem))
    assert found.totals()["uneven"] > 0
    blamed = {own.task for own in found.bubbles if own.cause == "uneven"}
    assert {task.microbatch for task in problem.tasks if task.id in blamed} == {2}


def test_a_rank_whose_memory_is_full_waits_for_memory() -> None:
    lengths = [1.0, 2.0, 1.5, 2.5, 1.0, 2.0]
    rows = [[own * (1 + chunk / 8) for own in lengths] for chunk in range(3)]
    free = pipeline(3, 1, 6, rows, [[2 * own for own in row] for row in rows])
    tight = replace(free, memory_capacity=(1.0,) * 3)
    found = explain(tight, interleave(tight))
    assert found.totals()["memory"] > 0.3 * sum(found.totals().values())
    assert any(link.reason == "memory" for link in found.critical_path)
    assert "memory" not in explain(free, interleave(tight)).totals()
    assert explain(free, interleave(tight)).totals()["order"] > 0


def test_work_that_fits_and_comes_later_is_the_orders_fault() -> None:
    problem = pipeline(2, 1, 4, [[1.0] * 4, [1.0] * 4], [[2.0] * 4] * 2)
    ids = {(task.kind, task.rank, task.microbatch): task.id for task in problem.tasks}
    one_at_a_time = Schedule(tuple(tuple(ids[kind, rank, m] for m in range(4) for kind in "FB") for rank in range(2)))
    found = explain(problem, one_at_a_time)
    assert found.totals()["order"] > 0
    assert "memory" not in found.totals()


def test_tails_are_a_ranks_own_ending() -> None:
    problem = uniform(2, 1, 3)
    problem = replace(problem, tasks=tuple(replace(t, tail=4.0 if t.kind == "B" else 0.0) for t in problem.tasks))
    found = explain(problem, gpipe(problem))
    assert found.ending == 4.0
    assert all(sums["ending"] == 4.0 for sums in found.sums())


def test_times_that_were_waited_for_something_known_are_cut_out() -> None:
    problem = uniform(2, 1, 3)
    schedule = gpipe(problem)
    times = retime(problem, schedule)
    later = Times(
        {task: own + 2.0 for task, own in times.start.items()},
        {task: own + 2.0 for task, own in times.end.items()},
        times.makespan + 3.0,
    )
    waits = [Bubble(rank, 0.0, 1.5, "planner") for rank in range(2)] + [Bubble(1, 1.5, 1.75, "data")]
    found = explain(problem, schedule, later, measured=True, waits=waits, loading=(0.25, 0.0))
    assert [sums["planner"] for sums in found.sums()] == [1.5, 1.5]
    assert found.sums()[0]["data"] == 0.25
    assert found.sums()[0]["late"] == 0.25
    assert [sums["ending"] for sums in found.sums()] == [1.0, 1.0]


def test_without_edges_inside_ranks_no_work_is_called_ready() -> None:
    problem = uniform(3, 1, 4)
    assert not {"memory", "order"} & set(explain(problem, gpipe(problem), ready_work=False).totals())


def test_an_empty_rank_and_an_empty_problem() -> None:
    problem = Problem(2, (None, None), (Task(0, 0, "F", "m", 0, 0, 0, 0, 2.0),), ())
    found = explain(problem, Schedule(((0,), ())))
    assert found.sums() == ({}, {"imbalance": 2.0})
    empty = explain(Problem(1, (None,), (), ()), Schedule(((),)))
    assert (empty.makespan, empty.bubbles, empty.critical_path, empty.bubble) == (0.0, (), (), 0.0)


def test_a_task_without_times_is_refused() -> None:
    problem = uniform(1, 1, 1)
    with pytest.raises(ScheduleError, match="task 1 has no times; give the start and end of every task"):
        explain(problem, gpipe(problem), Times({0: 0.0}, {0: 1.0}, 1.0))
    with pytest.raises(ScheduleError, match="ends before it starts"):
        explain(problem, gpipe(problem), Times({0: 0.0, 1: 3.0}, {0: 1.0, 1: 2.0}, 1.0))


@MANY
@given(case=cases())
def test_missed_work_is_the_ranks_own_later_work_each_once(case: tuple[Problem, Schedule]) -> None:
    problem, schedule = case
    found, times, durations = explain(problem, schedule), retime(problem, schedule), chosen(problem, schedule)
    tasks = {task.id: task for task in problem.tasks}
    near, blamed = 1e-8 * max(found.makespan, 1e-9), dict.fromkeys(tasks, 0.0)
    for own in found.bubbles:
        if own.cause in ("memory", "order"):
            assert own.task is not None
            assert tasks[own.task].rank == own.rank
            assert times.start[own.task] >= own.end - near
            blamed[own.task] += own.seconds
    assert all(seconds <= durations[task] + near for task, seconds in blamed.items())


@MANY
@given(case=cases(), seed=st.integers(0, 99))
def test_numbers_and_units_of_a_problem_change_nothing(case: tuple[Problem, Schedule], seed: int) -> None:
    problem, schedule = case
    other, new = renumbered(problem, seed)
    place = {pair.forward: number for number, pair in enumerate(problem.pairs)}
    back = {number: task for task, number in new.items()}
    renamed = Schedule(
        tuple(tuple(new[task] for task in order) for order in schedule.order),
        tuple(schedule.choices[place[back[pair.forward]]] for pair in other.pairs),
    )
    found, again = explain(problem, schedule), explain(other, renamed)
    for one, two in zip(found.sums(), again.sums(), strict=True):
        assert two == pytest.approx(one, abs=1e-7 * max(found.makespan, 1e-9))
    assert [link.start for link in found.critical_path] == pytest.approx([link.start for link in again.critical_path])
