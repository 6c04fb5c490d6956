"""What a report holds: why stages started, explanations, and its JSON."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.files import FileError
from ds_dip.reporting.viewer.document import (
    Bar,
    Bubble,
    Explanation,
    Report,
    StepFigures,
    View,
    bubble,
    course,
    document,
    explained,
)
from ds_dip.reporting.viewer.planned import view_of_plan
from ds_dip.scheduling import Problem
from tests.scheduling_cases import problems
from tests.viewer_cases import plan_of, small


@given(problems())
def test_what_came_before_ends_when_a_stage_starts(problem: Problem) -> None:
    # Plans are timed as early as their order lets them, so the last of what a stage waits for explains its start.
    view = view_of_plan(problem, plan_of(problem))
    (planned,) = view.courses
    for stage, time in enumerate(planned.times):
        assert time is not None
        before = planned.before[stage]
        if before < 0:
            assert time[0] == 0.0
            continue
        ahead = planned.times[before]
        assert ahead is not None
        assert time[0] == pytest.approx(ahead[1] + planned.delay[stage], rel=1e-9, abs=1e-9)


@given(problems())
def test_from_the_last_stage_back_is_the_whole_makespan(problem: Problem) -> None:
    plan = plan_of(problem)
    (planned,) = view_of_plan(problem, plan).courses
    stage = max(range(len(planned.times)), key=lambda own: planned.times[own][1])  # type: ignore[index]
    length, seen = 0.0, set()
    while stage >= 0:
        assert stage not in seen
        seen.add(stage)
        start, end = planned.times[stage]  # type: ignore[misc]
        length += end - start + planned.delay[stage] * (planned.before[stage] >= 0)
        stage = planned.before[stage]
    assert length == pytest.approx(plan.makespan)


def test_what_is_needed_is_named_before_what_merely_ran_before() -> None:
    bars = [Bar(0, "F", "m", 0, 0, 0), Bar(1, "F", "m", 0, 0, 0), Bar(1, "F", "m", 1, 1, 0)]
    times = [(0.0, 2.0), (0.0, 2.0), (2.0, 3.0)]
    assert course("planned", bars, times, [(0, 2, 0.0)]).before == (-1, -1, 0)
    assert course("planned", bars, times, []).before == (-1, -1, 1)


def test_stages_that_did_not_run_explain_nothing() -> None:
    bars = [Bar(0, "F", "m", 0, 0, 0), Bar(1, "F", "m", 1, 0, 0)]
    assert course("measured", bars, [None, (1.0, 2.0)], [(0, 1, 0.5)]).before == (-1, -1)


def test_the_bubble_is_the_idle_share_of_all_ranks() -> None:
    assert bubble(2, [(1.0, 3.0), (3.0, 5.0), (1.0, 2.0)]) == pytest.approx(3 / 8)
    assert bubble(2, [None, (1.0, 2.0)]) == 0.5
    assert bubble(2, [None]) == bubble(1, [(1.0, 1.0)]) == 0.0


def test_an_explanation_names_tasks_and_is_kept_by_stage() -> None:
    problem = small()
    view = replace(view_of_plan(problem, plan_of(problem)), explanations=())
    row = {"rank": 1, "start": 0.0, "end": 0.01, "cause": "ramp-up", "task": problem.tasks[7].id}
    given_ = {"critical_path": [problem.tasks[5].id], "bubbles": [row], "text": ["Rank 1 waits."]}
    found = explained(view, given_, shift=0.25)
    assert found.explanations == (
        Explanation("planned", (5,), (Bubble(1, 0.25, 0.26, "ramp-up", 7),), ("Rank 1 waits.",)),
    )
    (shown,) = document(Report("r", (found,)))["views"]
    (written,) = shown["explanations"]
    assert written["bubbles"] == [{"rank": 1, "start": 0.25, "end": 0.26, "cause": "ramp-up", "stage": 7}]
    assert (written["track"], written["critical_path"]) == ("planned", (5,))
    other = explained(view, {"critical_path": [3]}, "measured", stages={3: 1})
    assert other.explanations == (Explanation("measured", (1,)),)
    with pytest.raises(FileError, match="names task 999999, which the timeline does not have"):
        explained(view, {"critical_path": [999999]})
    with pytest.raises(FileError, match="bubble on rank 4, expected 0 to 3"):
        explained(view, {"bubbles": [{"rank": 4, "start": 0.0, "end": 1.0, "cause": "x"}]})


@given(problems(), st.floats(1e-9, 1e6))
def test_times_in_the_document_are_those_of_the_plan(problem: Problem, unit: float) -> None:
    plan = plan_of(problem)
    plan = replace(plan, tasks=tuple((task, unit * start, unit * end) for task, start, end in plan.tasks))
    view = view_of_plan(problem, plan)
    (shown,) = json.loads(json.dumps(document(Report("r", (view,))), allow_nan=False))["views"]
    longest = max(end for _, _, end in plan.tasks)
    (track,) = shown["tracks"]
    assert {len(column) for column in (*shown["stages"].values(), *(track[n] for n in ("start", "end", "before")))} == {
        len(problem.tasks)
    }
    for number, (_, start, end) in enumerate(plan.tasks):
        assert track["start"][number] == pytest.approx(start, abs=1e-8 * longest)
        assert track["end"][number] == pytest.approx(end, abs=1e-8 * longest)
    names = [shown["modules"][place] for place in shown["stages"]["module"]]
    assert names == [task.module for task in problem.tasks]
    assert ["FBW"[kind] for kind in shown["stages"]["kind"]] == [task.kind for task in problem.tasks]


def test_a_step_points_to_its_view_where_it_has_one() -> None:
    view = View("step 7", 1, (), (Bar(0, "F", "m", 0, 0, 0),), (course("planned", [], [], []),))
    steps = [StepFigures(step, "planned", "", 1.0, None, None, None, 0.0) for step in (6, 7)]
    assert [step["view"] for step in document(Report("r", (view,), steps=tuple(steps)))["steps"]] == [None, 0]
