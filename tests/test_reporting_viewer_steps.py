"""The views of a run's steps, and how many of them one file holds."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ds_dip.files import FileError, write_json
from ds_dip.reporting.timeline import write_timeline
from ds_dip.reporting.viewer import steps as viewer
from ds_dip.reporting.viewer.steps import report_of_run, view_of_step
from tests.recording_cases import PLANNER, record, simulated
from tests.viewer_cases import measured, run_folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_folder(tmp_path_factory.mktemp("run"), 6)


def test_a_step_has_its_stages_planned_and_measured_with_tokens() -> None:
    timeline = measured(3)
    view = view_of_step(timeline)
    assert [own.name for own in view.courses] == ["planned", "measured"]
    assert len(view.bars) == len(timeline.planned.stages)
    for own, track in zip(view.courses, (timeline.planned, timeline.measured), strict=True):
        assert track is not None
        at = {stage.stage: (stage.start_s, stage.end_s) for stage in track.stages}
        for bar, time in zip(view.bars, own.times, strict=True):
            found = next(s for s in track.stages if s.stage in at and time == at[s.stage] and s.rank == bar.rank)
            assert (found.module, found.chunk, found.microbatch) == (bar.module, bar.chunk, bar.microbatch)
    samples = {own.id: own for own in (s for m in PLANNER.plan(3).batch.microbatches for s in m.samples)}
    language = [bar for bar in view.bars if bar.module == "language" and bar.kind == "F" and bar.chunk == 0]
    assert sum(bar.tokens or 0 for bar in language) == sum(sum(s.modules["language"]) for s in samples.values())


def test_a_measured_stage_starts_no_earlier_than_what_let_it_start_ended() -> None:
    measured_course = view_of_step(measured(3)).courses[1]
    for time, before in zip(measured_course.times, measured_course.before, strict=True):
        assert time is not None
        if before >= 0:
            ahead = measured_course.times[before]
            assert ahead is not None
            assert time[0] == pytest.approx(ahead[1])


def test_a_stage_of_one_track_alone_is_shown_all_the_same(tmp_path: Path) -> None:
    timeline = measured(3)
    assert timeline.measured is not None
    missing = timeline.measured.stages[4]
    kept = tuple(own for own in timeline.measured.stages if own is not missing)
    timeline = replace(timeline, measured=replace(timeline.measured, stages=kept))
    view = view_of_step(timeline)
    assert len(view.bars) == len(timeline.planned.stages)
    assert sum(time is None for time in view.courses[1].times) == 1
    write_timeline(tmp_path, timeline)
    (view,) = report_of_run(tmp_path).views
    assert view.warning == "This step is not explained: 1 of its stages are not both planned and measured."
    assert view.explanations == ()


def test_a_stage_of_no_known_kind_is_refused() -> None:
    timeline = measured(3)
    odd = replace(timeline.planned.stages[0], kind="FB")
    with pytest.raises(FileError, match="step 3: a stage of rank 0 has kind 'FB', expected one of F, B, W"):
        view_of_step(replace(timeline, planned=replace(timeline.planned, stages=(odd,))))


@pytest.mark.parametrize("recorded", [False, True])
def test_both_courses_are_explained_and_bubbles_lie_between_stages(tmp_path: Path, recorded: bool) -> None:
    if recorded:
        record(tmp_path, simulated(PLANNER.plan(3), 5))
    else:
        write_timeline(tmp_path, measured(3))
    (view,) = report_of_run(tmp_path).views
    assert [own.track for own in view.explanations] == ["planned", "measured"]
    for own, course in zip(view.explanations, view.courses, strict=True):
        assert own.critical_path
        assert own.text
        for rank in range(view.ranks):
            times = [t for bar, t in zip(view.bars, course.times, strict=True) if bar.rank == rank and t is not None]
            idle = [(b.start, b.end) for b in own.bubbles if b.rank == rank]
            row = sorted([*times, *idle])
            for (_, end), (start, _) in pairwise(row):
                assert start == pytest.approx(end, abs=1e-9)


def test_a_run_opens_with_its_last_step_and_figures_of_all(run: Path) -> None:
    report = report_of_run(run, steps=2)
    assert [view.name for view in report.views] == ["step 4", "step 5"]
    assert report.opened == 1
    assert [step.step for step in report.steps] == list(range(6))
    assert [step.kind for step in report.steps].count("fallback") == 1
    assert report.steps[2].reason == "late"
    assert all(step.measured is not None and step.measured > step.planned for step in report.steps)
    assert report.notes == ("2 of the run's 6 timelines are in this file.",)


def test_a_step_that_is_asked_for_is_opened_with_those_before(run: Path) -> None:
    report = report_of_run(run, step=3, steps=3)
    assert [view.name for view in report.views] == ["step 1", "step 2", "step 3"]
    assert report.opened == 2
    with pytest.raises(FileError, match="has no timeline of step 9, only of 0, 1, 2, 3, 4, 5; name one of those"):
        report_of_run(run, step=9)


def test_a_file_holds_only_so_many_stages(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "MOST_STAGES", 130)
    report = report_of_run(run)
    assert 1 <= len(report.views) < 6
    assert sum(len(view.bars) for view in report.views) <= 130
    assert report.notes[0].endswith("more than 130 stages go into no file.")
    monkeypatch.setattr(viewer, "MOST_STAGES", 1)
    assert len(report_of_run(run).views) == 1


def test_recorded_steps_are_shown_and_their_figures_equal_those_of_timelines(tmp_path: Path) -> None:
    plans = [PLANNER.plan(step) for step in range(3)]
    record(tmp_path, *(simulated(plan, seed) for seed, plan in enumerate(plans)))
    full, brief = report_of_run(tmp_path), report_of_run(tmp_path, steps=1)
    assert len(full.views) == 3
    assert len(brief.views) == 1
    for one, other in zip(full.steps, brief.steps, strict=True):
        assert one.kind == other.kind
        for name in ("planned", "measured", "iteration", "planned_iteration", "bubble"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-12)


def test_the_runs_summary_is_shown_where_it_has_one(tmp_path: Path) -> None:
    write_timeline(tmp_path, measured(0))
    assert report_of_run(tmp_path).facts == ()
    summary = {"format": "ds-dip/summary", "version": 1, "steps": 30, "bubble": 0.125, "fallbacks": {"late": 2}}
    write_json(tmp_path / "summary.json", summary)
    assert report_of_run(tmp_path).facts == (
        ("steps", "30"),
        ("bubble (median)", "12.5 %"),
        ("fallbacks", "late 2"),
    )
