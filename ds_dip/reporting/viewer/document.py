"""What an HTML report holds, as values and as compact JSON: batches on their ranks, and an overview of a run's steps.

Columns are one entry a stage; a stage is named by its position in them. Times that a track does not have are null.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ds_dip.explaining import CAUSES
from ds_dip.files import FileError
from ds_dip.scheduling.problem import KINDS

#: Significant digits of the longest time: less than what any clock tells.
_DIGITS = 9
#: Of a batch's length, what is not waiting.
_SLACK = 1e-9

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Bar:
    """A stage on its rank; ``task`` is its id in the problem and ``tokens`` what it computes, where they are known."""

    rank: int
    kind: str
    module: str
    chunk: int
    microbatch: int
    sub: int
    task: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    """What goes from stage ``source`` to stage ``target``: on another rank a transfer. ``bytes`` where known."""

    source: int
    target: int
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """When stages ran: ``times`` one a stage, None where the course does not have it.

    ``before`` is the stage that let each one start, -1 for none: the one before it on its rank, or one that it takes
    something from, whose end plus ``delay`` came last.
    """

    name: str
    times: tuple[Interval | None, ...]
    before: tuple[int, ...]
    delay: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bubble:
    """A time in which a rank idles, with its cause and the stage that is blamed, -1 for none."""

    rank: int
    start: float
    end: float
    cause: str
    stage: int = -1


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the course that is called ``track`` takes as long: its critical path, its bubbles, and sentences."""

    track: str
    critical_path: tuple[int, ...] = ()
    bubbles: tuple[Bubble, ...] = ()
    text: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """One batch: its stages, planned and perhaps measured, with memory per rank as (time, bytes) from each time on.

    ``warning`` says above it what is wrong with it, ``note`` below it how to take its times.
    """

    name: str
    ranks: int
    facts: tuple[tuple[str, str], ...]
    bars: tuple[Bar, ...]
    courses: tuple[Course, ...]
    arrows: tuple[Arrow, ...] = ()
    memory: tuple[tuple[Interval, ...], ...] = ()
    capacity: tuple[float | None, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    note: str = ""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """A step of a run: seconds of its stages, planned and measured, and of the whole iteration, where known.

    ``bubble`` is the idle share of the measured stages, or of the planned ones where nothing was measured.
    """

    step: int
    kind: str
    reason: str
    planned: float
    measured: float | None
    planned_iteration: float | None
    iteration: float | None
    bubble: float


@dataclass(frozen=True, slots=True)
class Report:
    """What one file shows: ``views``, of which ``opened`` is shown first; of a run also the figures of its steps.

    Where ``unitless`` is true, times and memory are plain numbers. ``notes`` are sentences about what is left out.
    """

    title: str
    views: tuple[View, ...]
    opened: int = 0
    unitless: bool = False
    facts: tuple[tuple[str, str], ...] = ()
    steps: tuple[StepFigures, ...] = ()
    notes: tuple[str, ...] = ()


def course(
    name: str,
    bars: Sequence[Bar],
    times: Sequence[Interval | None],
    needs: Iterable[tuple[int, int, float]],
    order: Sequence[int] = (),
) -> Course:
    """A course with what let each stage start; ``needs`` are (source, target, delay) between stages.

    ``order`` are stages in running order: it tells apart those of a rank that take no time at one moment.
    """
    length = max((time[1] for time in times if time is not None), default=0.0)
    incoming: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for source, target, delay in needs:
        incoming[target].append((source, delay))
    previous = _previous(bars, times, order)
    before, delays = [], []
    for stage in range(len(bars)):
        last, after, ready = -1, 0.0, -math.inf
        if (ahead := previous[stage]) >= 0 and (time := times[ahead]) is not None:
            last, ready = ahead, time[1]
        for source, delay in incoming[stage]:
            time = times[source]
            # Of equals, what is needed says more than what merely came before.
            if time is not None and time[1] + delay >= ready - _SLACK * length:
                last, after, ready = source, delay, time[1] + delay
        before.append(last)
        delays.append(after)
    return Course(name, tuple(times), tuple(before), tuple(delays))


def _previous(bars: Sequence[Bar], times: Sequence[Interval | None], order: Sequence[int]) -> list[int]:
    """For each stage the one that ran before it on its rank; -1 for none."""
    previous = [-1] * len(bars)
    place = {stage: number for number, stage in enumerate(order)}
    ranks: dict[int, list[tuple[Interval, int, int]]] = defaultdict(list)
    for stage, (bar, time) in enumerate(zip(bars, times, strict=True)):
        if time is not None:
            ranks[bar.rank].append((time, place.get(stage, -1), stage))
    for row in ranks.values():
        row.sort()
        for (*_, ahead), (*_, stage) in pairwise(row):
            previous[stage] = ahead
    return previous


def bubble(ranks: int, times: Sequence[Interval | None]) -> float:
    """The idle share of all ranks between the first stage's start and the last one's end."""
    ran = [time for time in times if time is not None]
    if not ran:
        return 0.0
    length = max(end for _, end in ran) - min(start for start, _ in ran)
    busy = sum(end - start for start, end in ran)
    return 0.0 if length <= 0 else max(0.0, 1.0 - busy / (length * ranks))


def explained(
    view: View,
    document: Mapping[str, Any],
    track: str = "planned",
    stages: Mapping[int, int] | None = None,
    shift: float = 0.0,
) -> View:
    """A view with one more explanation, of a course: ``critical_path``, ``bubbles`` and ``text``, each optional.

    The document names tasks; ``stages`` are their stages, by default those that have a task. ``shift`` is added to its
    times. Raises FileError where it names a task or a rank that the view does not have.
    """
    if stages is None:
        stages = {bar.task: stage for stage, bar in enumerate(view.bars) if bar.task is not None}

    def stage_of(task: int) -> int:
        if task not in stages:
            raise FileError(f"the explanation names task {task!r}, which the timeline does not have")
        return stages[task]

    bubbles = []
    for row in document.get("bubbles", ()):
        if not 0 <= row["rank"] < view.ranks:
            raise FileError(f"the explanation has a bubble on rank {row['rank']}, expected 0 to {view.ranks - 1}")
        blamed = -1 if row.get("task") is None else stage_of(row["task"])
        bubbles.append(Bubble(row["rank"], row["start"] + shift, row["end"] + shift, row["cause"], blamed))
    path = tuple(stage_of(task) for task in document.get("critical_path", ()))
    found = Explanation(track, path, tuple(bubbles), tuple(document.get("text", ())))
    return replace(view, explanations=(*view.explanations, found))


def document(report: Report) -> dict[str, Any]:
    """The report as JSON (``ds-dip/report`` 1), with times rounded to what can be seen."""
    names = {view.name: place for place, view in enumerate(report.views)}
    return {
        "format": "ds-dip/report",
        "version": 1,
        "title": report.title,
        "opened": report.opened,
        "unitless": report.unitless,
        "facts": report.facts,
        "causes": CAUSES,
        "notes": report.notes,
        "steps": [_step(step, names.get(step_name(step.step))) for step in report.steps],
        "views": [_view(view) for view in report.views],
    }


def step_name(step: int) -> str:
    """The name of a step's view."""
    return f"step {step}"


def _step(step: StepFigures, view: int | None) -> dict[str, Any]:
    return {name: getattr(step, name) for name in StepFigures.__slots__} | {"view": view}


def _view(view: View) -> dict[str, Any]:
    length = max((time[1] for own in view.courses for time in own.times if time is not None), default=0.0)
    decimals = _DIGITS - math.ceil(math.log10(length)) if length > 0 else _DIGITS
    modules = list(dict.fromkeys(bar.module for bar in view.bars))
    place = {module: number for number, module in enumerate(modules)}
    stages: dict[str, list[Any]] = {
        name: [getattr(bar, name) for bar in view.bars]
        for name in ("rank", "kind", "chunk", "microbatch", "sub", "task", "tokens")
    }
    stages["kind"] = [KINDS.index(kind) for kind in stages["kind"]]
    stages["module"] = [place[bar.module] for bar in view.bars]
    for name in ("task", "tokens"):
        if all(value is None for value in stages[name]):
            del stages[name]

    def rounded(time: float) -> float:
        return round(time, decimals)

    def track(own: Course) -> dict[str, Any]:
        return {
            "name": own.name,
            "start": [None if time is None else rounded(time[0]) for time in own.times],
            "end": [None if time is None else rounded(time[1]) for time in own.times],
            "before": own.before,
            "delay": [rounded(delay) for delay in own.delay],
        }

    found: dict[str, Any] = {
        "name": view.name,
        "ranks": view.ranks,
        "facts": view.facts,
        "note": view.note,
        "warning": view.warning,
        "modules": modules,
        "stages": stages,
        "tracks": [track(own) for own in view.courses],
        "arrows": {
            "source": [arrow.source for arrow in view.arrows],
            "target": [arrow.target for arrow in view.arrows],
            "bytes": [arrow.bytes for arrow in view.arrows],
        },
        "memory": [
            {"at": [rounded(at) for at, _ in own], "bytes": [float(f"{held:.7g}") for _, held in own]}
            for own in view.memory
        ],
        "capacity": view.capacity,
    }
    if view.explanations:
        found["explanations"] = [
            {
                "track": own.track,
                "critical_path": own.critical_path,
                "bubbles": [
                    {"rank": b.rank, "start": rounded(b.start), "end": rounded(b.end), "cause": b.cause}
                    | ({"stage": b.stage} if b.stage >= 0 else {})
                    for b in own.bubbles
                ],
                "text": own.text,
            }
            for own in view.explanations
        ]
    return found
