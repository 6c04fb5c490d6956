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
    InfeasibleError,
    Problem,
    Schedule,
    ScheduleError,
    Task,
    gpipe,
    interleave,
    one_f_one_b,
    retime,
)
from ds_dip.scheduling.instances import pipeline, uniform
from tests.scheduling_cases import problems

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
