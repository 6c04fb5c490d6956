"""Steps of runs, explained: measured or planned, from a recording or from a timeline alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.files import FileError
from ds_dip.planning import build_problem
from ds_dip.reporting.explained import ExplainedStep, explained_step, explained_timeline, timeline_problem
from ds_dip.reporting.timeline import step_timeline, write_timeline
from ds_dip.scheduling import retime
from tests.planner_cases import FEW, MODEL
from tests.recording_cases import PLANNER, record, run_of, scaled, simulated

PLAN = PLANNER.plan(3)
PROBLEM = build_problem(PLAN.batch, MODEL, PLANNER.settings.partition, PLANNER.costs)


def check(found: ExplainedStep, until: float) -> None:
    """All of the step's time is a rank's stages or its bubbles."""
    explanation = found.explanation
    assert explanation.makespan == pytest.approx(until)
    rank_of = {task.id: task.rank for task in found.problem.tasks}
    for rank in range(found.problem.ranks):
        stages = math.fsum(end - start for task, (start, end) in found.spans.items() if rank_of[task] == rank)
        bubbles = math.fsum(own.seconds for own in explanation.bubbles if own.rank == rank)
        assert stages + bubbles == pytest.approx(until, rel=1e-9)
    assert explanation.length == pytest.approx(until, rel=1e-9)


@FEW
@given(seed=st.integers(0, 10**6), alone=st.booleans())
def test_a_measured_step_is_its_stages_and_its_bubbles(seed: int, alone: bool) -> None:
    step = simulated(PLAN, seed)
    timeline = step_timeline(PLAN, step, PROBLEM)
    found = explained_timeline(timeline, None if alone else PROBLEM, ready_work=not alone)
    assert found.explanation.measured
    check(found, step.iteration)
    assert all(sums.get("planner", 0.0) <= step.waited + 1e-12 for sums in found.explanation.sums())


def test_a_planned_step_is_explained_as_its_plan(tmp_path: Path) -> None:
    record(tmp_path, scaled(PLAN, 2.0))
    found = explained_step(tmp_path, planned=True)
    assert not found.explanation.measured
    assert found.explanation.ready_work
    check(found, PLAN.makespan)
    assert retime(found.problem, found.schedule).makespan == pytest.approx(PLAN.makespan)


def test_a_recorded_step_is_measured_with_the_wait_for_its_plan(tmp_path: Path) -> None:
    step = scaled(PLAN, 2.0, begin=0.004, end=0.002)
    record(tmp_path, scaled(PLANNER.plan(2)), step)
    found = explained_step(tmp_path)
    assert found.timeline.step == 3
    check(found, step.iteration)
    sums = found.explanation.sums()
    assert sums[0]["planner"] == pytest.approx(0.002)
    assert sums[0]["late"] == pytest.approx(0.002)
    assert all(own["ending"] >= 0.002 - 1e-12 for own in sums)


def test_a_timeline_alone_says_nothing_of_memory_and_order(tmp_path: Path) -> None:
    write_timeline(tmp_path, step_timeline(PLAN, scaled(PLAN, 1.5), PROBLEM))
    found = explained_step(tmp_path, 3)
    assert not found.explanation.ready_work
    assert not {"memory", "order"} & set(found.explanation.totals())
    check(found, scaled(PLAN, 1.5).iteration)


def test_a_plan_that_did_not_run_is_explained_as_planned(tmp_path: Path) -> None:
    write_timeline(tmp_path, step_timeline(PLAN, None, PROBLEM))
    check(explained_step(tmp_path), PLAN.makespan)


def test_a_plan_with_split_backwards_has_them_in_its_problem(tmp_path: Path) -> None:
    settings = replace(PLANNER.settings, split=0.0, evaluations=60)
    planner = type(PLANNER)(settings)
    plans = (planner.plan(number) for number in range(40))
    plan = next(own for own in plans if any(t.stage.kind == "W" for rank in own.stages for t in rank))
    record(tmp_path, scaled(plan), run=run_of(settings))
    found = explained_step(tmp_path, planned=True)
    assert found.explanation.ready_work
    assert any(task.kind == "W" for task in found.problem.tasks)
    check(found, plan.makespan)
    assert retime(found.problem, found.schedule).makespan == pytest.approx(plan.makespan)


def test_a_timelines_problem_has_its_stages_and_messages() -> None:
    problem = timeline_problem(step_timeline(PLAN, None, PROBLEM))
    assert len(problem.tasks) == len(PROBLEM.tasks)
    ranks = {task.id: task.rank for task in PROBLEM.tasks}
    crossing = [delay for before, after, delay in PROBLEM.edges if ranks[before] != ranks[after]]
    assert sorted(delay for _, _, delay in problem.edges) == pytest.approx(sorted(crossing))


def test_a_step_that_is_not_there_is_told(tmp_path: Path) -> None:
    write_timeline(tmp_path, step_timeline(PLAN))
    with pytest.raises(FileError, match="has no timeline of step 4; it has 1, from 3 to 3"):
        explained_step(tmp_path, 4)


def test_what_a_rank_waited_for_samples_is_part_of_its_lateness(tmp_path: Path) -> None:
    step = replace(scaled(PLAN, 1.0, begin=0.004), loading=(0.0015, 0.0))
    record(tmp_path, step)
    found = explained_step(tmp_path)
    check(found, step.iteration)
    assert found.timeline.loading_s == (0.0015, 0.0)
    assert found.explanation.sums()[0]["data"] == pytest.approx(0.0015)
    assert found.explanation.sums()[0]["late"] == pytest.approx(0.0005)
    assert "data" not in found.explanation.sums()[1]
