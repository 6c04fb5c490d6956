"""The views of a run's steps, planned and measured, and the figures of more of them than fit into a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ds_dip.explaining import explanation_document
from ds_dip.files import FileError, read_json
from ds_dip.planner.recording import SUFFIX as RECORDED
from ds_dip.planner.recording import Recording
from ds_dip.programs.program import Stage
from ds_dip.reporting.explained import explained_step, explained_timeline
from ds_dip.reporting.summary import FORMAT as SUMMARY
from ds_dip.reporting.timeline import StepTimeline, Track, listed, read_timeline, timeline_of, timelines
from ds_dip.reporting.viewer.document import (
    Arrow,
    Bar,
    Course,
    Interval,
    Report,
    StepFigures,
    View,
    bubble,
    course,
    explained,
    step_name,
)
from ds_dip.reporting.viewer.quantities import difference, seconds, share, size
from ds_dip.scheduling import ProblemError, ScheduleError
from ds_dip.scheduling.problem import KINDS

#: Stages of all steps in one file: with both tracks and their explanations about 200 bytes each.
MOST_STAGES = 200_000
#: Batches of which a run's report shows the figures.
MOST_FIGURES = 200


def report_of_run(run: str | Path, *, step: int | None = None, steps: int = 12) -> Report:
    """The last ``steps`` steps of a run's folder, or those up to ``step``, which is then the one that is opened.

    Raises FileError where the folder has no timelines, or none of that step.
    """
    found = timelines(run)
    if step is not None and step not in found:
        raise FileError(f"{run}: has no timeline of step {step}, only of {listed(list(found))}; name one of those")
    until = [own for own in found if step is None or own <= step]
    views, figures, stages, full = list[View](), list[StepFigures](), 0, False
    for own in reversed(until[-max(MOST_FIGURES, steps) :]):
        full = full or len(views) == steps
        if full:
            figures.append(_figures_of(run, own, found[own]))
            continue
        timeline = timeline_of(run, own)
        figures.append(_figures(timeline))
        stages += len(timeline.planned.stages)
        # The opened step is shown however large it is.
        if views and stages > MOST_STAGES:
            full = True
        else:
            views.append(_with_reasons(view_of_step(timeline), timeline, run, recorded=_is_recorded(found[own])))
    views.reverse()
    figures.reverse()
    notes = []
    if len(views) < len(found):
        large = f"; more than {MOST_STAGES:,} stages go into no file" if stages > MOST_STAGES else ""
        notes.append(f"{len(views)} of the run's {len(found)} timelines are in this file{large}.")
    return Report(
        title=f"Run {Path(run).resolve().name}",
        views=tuple(views),
        opened=len(views) - 1,
        facts=tuple(_run_facts(run)),
        steps=tuple(figures),
        notes=tuple(notes),
    )


def view_of_step(timeline: StepTimeline) -> View:
    """One step: its stages, when each was planned and when it ran. Raises FileError for a stage of no known kind."""
    tracks = {"planned": timeline.planned}
    if timeline.measured is not None:
        tracks["measured"] = timeline.measured
    bars: dict[Stage, Bar] = {}
    for track in tracks.values():
        for own in track.stages:
            if own.kind not in KINDS:
                raise FileError(
                    f"step {timeline.step}: a stage of rank {own.rank} has kind {own.kind[:20]!r}, expected one of "
                    f"{', '.join(KINDS)}; its timeline is damaged"
                )
            bars.setdefault(
                own.stage,
                Bar(own.rank, own.kind, own.module, own.chunk, own.microbatch, own.sub, tokens=own.tokens),
            )
    index = {stage: place for place, stage in enumerate(bars)}
    rows = tuple(bars.values())
    courses = tuple(_course(name, track, rows, index) for name, track in tracks.items())
    memory: list[list[Interval]] = [[] for _ in range(timeline.ranks)]
    for sample in timeline.planned.memory:
        memory[sample.rank].append((sample.at_s, sample.bytes))
    return View(
        name=step_name(timeline.step),
        ranks=timeline.ranks,
        facts=tuple(_facts(timeline)),
        bars=rows,
        courses=courses,
        arrows=tuple(
            Arrow(index[Stage(*own.source)], index[Stage(*own.target)], own.bytes)
            for own in timeline.planned.transfers
            if Stage(*own.source) in index and Stage(*own.target) in index
        ),
        memory=tuple(map(tuple, memory)) if timeline.planned.memory else (),
        note=f"Clock: {timeline.clock}.",
    )


def _course(name: str, track: Track, bars: Sequence[Bar], index: dict[Stage, int]) -> Course:
    times: list[Interval | None] = [None] * len(bars)
    for own in track.stages:
        times[index[own.stage]] = own.start_s, own.end_s
    needs = []
    for transfer in track.transfers:
        source, target = (index.get(Stage(*end)) for end in (transfer.source, transfer.target))
        if source is None or target is None or (begins := times[target]) is None:
            continue
        # A measured transfer ends by definition when its target starts: it tells no delay of its own.
        delay = transfer.end_s - transfer.start_s if name == "planned" else 0.0
        needs.append((source, target, min(delay, max(0.0, begins[0] - transfer.start_s))))
    return course(name, bars, times, needs, [index[own.stage] for own in track.stages])


def _length(track: Track | None) -> float | None:
    if track is None or not track.stages:
        return None
    return max(own.end_s for own in track.stages) - min(own.start_s for own in track.stages)


def _idle(timeline: StepTimeline, track: Track) -> float:
    return bubble(timeline.ranks, [(own.start_s, own.end_s) for own in track.stages])


def _figures(timeline: StepTimeline) -> StepFigures:
    return StepFigures(
        step=timeline.step,
        kind=timeline.kind,
        reason=timeline.reason,
        planned=_length(timeline.planned) or 0.0,
        measured=_length(timeline.measured),
        planned_iteration=timeline.planned_iteration_s,
        iteration=timeline.iteration_s,
        bubble=_idle(timeline, timeline.measured or timeline.planned),
    )


def _is_recorded(path: Path) -> bool:
    return path.name.endswith(RECORDED)


def _with_reasons(view: View, timeline: StepTimeline, run: str | Path, *, recorded: bool) -> View:
    """The view with explanations of its courses, or with a note of why there are none.

    A recording knows more of its problem than a timeline.
    """
    try:
        known = (
            explained_step(run, timeline.step, planned=True) if recorded else explained_timeline(timeline, planned=True)
        )
        found = [("planned", known)]
        if timeline.measured is not None:
            unlike = {own.stage for own in timeline.measured.stages} ^ {own.stage for own in timeline.planned.stages}
            if unlike:
                raise ScheduleError(f"{len(unlike)} of its stages are not both planned and measured")
            ready = known.explanation.ready_work
            found.append(("measured", explained_timeline(timeline, known.problem, ready_work=ready)))
    except (ProblemError, ScheduleError) as error:
        return replace(view, warning=f"This step is not explained: {error}.")
    index = {(bar.kind, bar.module, bar.chunk, bar.microbatch, bar.sub): n for n, bar in enumerate(view.bars)}
    for track, own in found:
        stages = {t.id: index[t.kind, t.module, t.chunk, t.microbatch, t.sub] for t in own.problem.tasks}
        # A plan's explanation begins with its first stage, which the timeline puts where the first measured one began.
        shift = 0.0
        if track == "planned":
            shift = min((stage.start_s for stage in timeline.planned.stages), default=0.0)
        view = explained(view, explanation_document(own.problem, own.explanation), track, stages, shift)
    return view


def _figures_of(run: str | Path, step: int, path: Path) -> StepFigures:
    """A step's figures alone: of a recorded one without making its problem again, which takes far longer."""
    if not _is_recorded(path):
        return _figures(read_timeline(path))
    found = Recording(run).read(step)
    rows = [[(time.start, time.end) for rank in ranks for time in rank] for ranks in (found.plan.stages, found.stages)]
    planned, measured = (max(end for _, end in row) - min(start for start, _ in row) for row in rows)
    return StepFigures(
        step=step,
        kind=found.plan.kind,
        reason=found.plan.reason,
        planned=planned,
        measured=measured,
        planned_iteration=found.plan.iteration,
        iteration=found.iteration,
        bubble=bubble(len(found.stages), rows[1]),
    )


def _facts(timeline: StepTimeline) -> Iterator[tuple[str, str]]:
    figures = _figures(timeline)
    yield "kind", timeline.kind + (f" ({timeline.reason})" if timeline.reason else "")
    yield "schedule", timeline.schedule
    yield "stages, planned", seconds(figures.planned)
    if figures.measured is not None and timeline.measured is not None:
        yield "stages, measured", f"{seconds(figures.measured)} ({difference(figures.measured, figures.planned)})"
    if figures.iteration is not None:
        planned = figures.planned_iteration
        yield "iteration", seconds(figures.iteration) + ("" if planned is None else f" (planned {seconds(planned)})")
    if timeline.waited_s is not None:
        yield "waited for the plan", seconds(timeline.waited_s)
    yield "bubble, planned", share(_idle(timeline, timeline.planned))
    if timeline.measured is not None:
        yield "bubble, measured", share(_idle(timeline, timeline.measured))
    stages = timeline.planned.stages
    yield "size", size(timeline.ranks, len({own.microbatch for own in stages}), len(stages))


def _run_facts(run: str | Path) -> Iterator[tuple[str, str]]:
    """What a run's summary says, where it has one."""
    path = Path(run, "summary.json")
    if not path.exists():
        return
    summary = read_json(path, SUMMARY)

    def number(name: str) -> float | None:
        value: Any = summary.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    for label, name, shown in (
        ("steps", "steps", lambda value: f"{value:.0f}"),
        ("iteration, predicted (median)", "predicted_iteration_s", seconds),
        ("iteration, measured (median)", "measured_iteration_s", seconds),
        ("prediction error (median)", "prediction_error", share),
        ("bubble (median)", "bubble", share),
        ("waited for plans", "stall", share),
        ("planner restarts", "planner_restarts", lambda value: f"{value:.0f}"),
    ):
        if (value := number(name)) is not None:
            yield label, shown(value)
    if isinstance(fallbacks := summary.get("fallbacks"), dict):
        causes = ", ".join(f"{cause} {count}" for cause, count in fallbacks.items())
        yield "fallbacks", causes or "none"
