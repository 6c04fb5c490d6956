"""What changed problems would bring: each is really another problem, searched, with what the search leaves open."""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.explaining.what_if import CHANGES, MICROBATCHES, RANKS, Change, Effort, Outcome, balance, searched, what_if
from ds_dip.scheduling import Problem, interleave, lower_bound, solve
from ds_dip.scheduling.instances import pipeline, uniform
from tests.scheduling_cases import problems

FEW = hypothesis.settings(deadline=None, max_examples=40)
SMALL = Effort(evaluations=40, seeds=2)


def work(problem: Problem) -> list[float]:
    found = [0.0] * problem.ranks
    for task in problem.tasks:
        found[task.rank] += task.duration
    return found


def changes(problem: Problem) -> dict[str, Change]:
    return {own.name: own for make in CHANGES.values() for own in make(problem)}


@FEW
@given(problem=problems(), choices=st.booleans())
def test_a_change_changes_what_it_says_and_nothing_else(problem: Problem, choices: bool) -> None:
    found = changes(problem)
    if "memory x1.25" in found:
        more = found["memory x1.25"].problem
        assert more.memory_capacity == tuple(None if own is None else 1.25 * own for own in problem.memory_capacity)
        assert more == replace(problem, memory_capacity=more.memory_capacity)
        assert found["no memory limit"].problem.memory_capacity == (None,) * problem.ranks
    else:
        assert all(own is None for own in problem.memory_capacity)
    if "links x2" in found:
        for name, factor in (("links x2", 0.5), ("no transfers", 0.0)):
            edges = tuple((before, after, factor * delay) for before, after, delay in problem.edges)
            assert found[name].problem == replace(problem, edges=edges)
    if RANKS in found:
        own = work(found[RANKS].problem)
        assert max(own) == pytest.approx(min(own), rel=1e-9)
        assert math.fsum(own) == pytest.approx(math.fsum(work(problem)))
    if MICROBATCHES in found:
        stages: dict[tuple[object, ...], set[float]] = {}
        for task in found[MICROBATCHES].problem.tasks:
            if task.duration > 0:
                stages.setdefault((task.rank, task.kind, task.module, task.chunk), set()).add(round(task.duration, 9))
        assert all(len(own) == 1 for own in stages.values())
    if "one more microbatch" in found:
        more = found["one more microbatch"].problem
        assert len({task.microbatch for task in more.tasks}) == 1 + len({task.microbatch for task in problem.tasks})
        assert math.fsum(work(more)) == pytest.approx(math.fsum(work(problem)))
    for own in found.values():
        assert searched(own, None, SMALL).makespans or searched(own, None, SMALL).reason


@FEW
@given(problem=problems(choices=True))
def test_choices_change_with_their_stages(problem: Problem) -> None:
    durations = {task.id: task.duration for task in problem.tasks}
    for own in balance(problem):
        changed = {task.id: task.duration for task in own.problem.tasks}
        for before, after in zip(problem.pairs, own.problem.pairs, strict=True):
            for one, other in zip(before.choices, after.choices, strict=True):
                for name, task in (("forward_duration", before.forward), ("backward_duration", before.backward)):
                    wanted = getattr(one, name) * (changed[task] / durations[task] if durations[task] else 1.0)
                    assert getattr(other, name) == pytest.approx(wanted)


def test_more_memory_is_found_to_help_where_memory_is_short() -> None:
    lengths = [1.0, 2.0, 1.5, 2.5, 1.0, 2.0]
    rows = [[own * (1 + chunk / 8) for own in lengths] for chunk in range(3)]
    problem = pipeline(3, 1, 6, rows, [[2 * own for own in row] for row in rows], cap=1.0)
    base, *found = what_if(problem, interleave(problem), ("memory",), Effort(200, seeds=3))
    by_name = {own.name: own for own in found}
    assert len(base.makespans) == 3
    assert by_name["no memory limit"].is_known(base)
    gain, least, most = by_name["no memory limit"].gain(base)
    assert 0.1 < least <= gain <= most < 1.0
    best = solve(replace(problem, memory_capacity=(None,) * 3), evaluations=200).makespan
    assert min(by_name["no memory limit"].makespans) <= best
    assert by_name["no memory limit"].bound == lower_bound(replace(problem, memory_capacity=(None,) * 3))[0]


def test_what_changes_nothing_is_no_more_than_another_seed() -> None:
    problem = uniform(3, 1, 6, cap=6.0)
    base, *found = what_if(problem, interleave(problem), ("memory", "links", "balance"), SMALL)
    assert [own.name for own in found] == ["memory x1.25", "no memory limit"]
    assert not any(own.is_known(base) for own in found)
    assert all(own.gain(base) == (0.0, 0.0, 0.0) for own in found)


def test_a_problem_that_does_not_fit_says_why() -> None:
    problem = uniform(2, 2, 3, cap=1.0)
    found = searched(Change("tight", "", problem), None, SMALL)
    assert found.makespans == ()
    assert "microbatch 0 alone needs 2 on rank 0" in found.reason


def test_the_known_gain_needs_spreads_apart() -> None:
    base = Outcome("base", "", (10.0, 10.5), 8.0)
    assert Outcome("better", "", (9.0, 9.9), 8.0).is_known(base)
    assert not Outcome("unclear", "", (9.0, 10.2), 8.0).is_known(base)
    assert Outcome("worse", "", (11.0, 12.0), 8.0).is_known(base)
