"""The view of a plan: its memory and what is refused."""

from dataclasses import replace

import pytest
from hypothesis import given

from ds_dip.files import FileError
from ds_dip.reporting.viewer.document import Report, document
from ds_dip.reporting.viewer.planned import view_of_plan
from ds_dip.scheduling import Problem, interleave, retime
from tests.scheduling_cases import problems
from tests.viewer_cases import plan_of, small


@given(problems(choices=True))
def test_memory_peaks_as_the_schedule_does_and_ends_with_nothing(problem: Problem) -> None:
    schedule = interleave(problem)
    view = view_of_plan(problem, plan_of(problem, schedule))
    peaks = retime(problem, schedule).peak_memory
    for row, peak in zip(view.memory, peaks, strict=bool(view.memory)):
        assert max((held for _, held in row), default=0.0) == pytest.approx(peak, abs=1e-9)
        assert not row or row[-1][1] == pytest.approx(0.0, abs=1e-9)
        assert [at for at, _ in row] == sorted(at for at, _ in row)
    assert bool(view.memory) == any(peaks)


@given(problems())
def test_transfers_are_the_edges_between_ranks(problem: Problem) -> None:
    view = view_of_plan(problem, plan_of(problem))
    rank = {task.id: task.rank for task in problem.tasks}
    found = [(view.bars[arrow.source].task, view.bars[arrow.target].task) for arrow in view.arrows]
    assert found == [(a, b) for a, b, _ in problem.edges if rank[a] != rank[b]]


@given(problems())
def test_stages_and_the_bubbles_that_are_explained_fill_every_ranks_time(problem: Problem) -> None:
    plan = plan_of(problem)
    view = view_of_plan(problem, plan)
    (found,) = view.explanations
    for rank in range(problem.ranks):
        idle = [(own.start, own.end) for own in found.bubbles if own.rank == rank]
        busy = [
            time
            for bar, time in zip(view.bars, view.courses[0].times, strict=True)
            if bar.rank == rank and time is not None
        ]
        assert sum(end - start for start, end in (*idle, *busy)) == pytest.approx(plan.makespan, abs=1e-9)
    assert view.warning == ""


def test_a_plan_that_does_not_hold_is_shown_as_such_without_an_explanation() -> None:
    plan = plan_of(small())
    task, start, end = plan.tasks[0]
    view = view_of_plan(small(), replace(plan, tasks=((task, start, end + 1.0), *plan.tasks[1:])))
    assert view.warning.startswith("This plan does not hold, see ds-dip check: ")
    assert view.explanations == ()


def test_the_facts_say_makespan_bound_gap_and_bubble() -> None:
    facts = dict(view_of_plan(small(), plan_of(small())).facts)
    assert facts["size"] == "4 ranks, 8 microbatches, 248 stages"
    assert facts["makespan"].endswith(" s")
    assert facts["gap"].endswith("(feasible)")
    assert 0 < float(facts["bubble"].removesuffix(" %")) < 100
    assert dict(view_of_plan(small(), plan_of(small()), unitless=True).facts)["makespan"].isascii()


def test_a_problem_without_tasks_is_an_empty_timeline() -> None:
    problem = Problem(2, (None, 1.0), (), ())
    view = view_of_plan(problem, plan_of(problem))
    assert (view.ranks, view.bars, view.arrows) == (2, (), ())
    assert document(Report("r", (view,)))["views"][0]["tracks"][0]["start"] == []


def test_another_problems_plan_is_refused() -> None:
    plan = plan_of(small())
    with pytest.raises(FileError, match="does not have every task of the problem once .see task 0."):
        view_of_plan(small(), replace(plan, tasks=plan.tasks[1:]))
    with pytest.raises(FileError, match="is infeasible, so there is no timeline to show .too large."):
        view_of_plan(small(), replace(plan, status="infeasible", reason="too large", tasks=()))
