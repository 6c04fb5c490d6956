"""The figures of a finished run: ``summary.json`` (``ds-dip/summary`` 1) and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from ds_dip.files import write_json
from ds_dip.planner import SourceStatistics

if TYPE_CHECKING:
    from rich.table import Table

FORMAT, VERSION = "ds-dip/summary", 1
#: Losses at the start and the end are means over this many steps: one batch says little.
_WINDOW = 10


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a run.

    ``seconds`` is its wall time in the training loop, ``predicted_s`` and ``measured_s`` the whole
    iteration as the plan and the engine have it, ``bubble`` the idle share of the measured stages,
    ``stall_s`` how long the slowest rank waited for its plan.
    """

    step: int
    loss: float
    samples: int
    seconds: float
    predicted_s: float
    measured_s: float
    bubble: float
    stall_s: float = 0.0

    @property
    def error(self) -> float:
        """Prediction over measurement, less 1; 0 where nothing was measured."""
        return self.predicted_s / self.measured_s - 1.0 if self.measured_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to; times are medians over its steps, ``losses`` one a step.

    ``accuracy`` is None where the run has none. ``prediction_error`` is the median over steps of
    |predicted - measured| / measured, of iterations. ``plans`` counts the planner's, ``hits`` those that
    were there when they were asked for, ``reused`` those of an equal batch, ``fallbacks`` those that the
    leader made instead, by cause; ``newest_reasons`` say why. ``plan_s`` is how long a plan took to make,
    ``lead`` how many steps beyond the running one were planned, ``waited_s`` how long the leader waited
    for plans altogether, ``stall`` the share of the time of all steps but the first, whose planner is
    starting, that the slowest rank waited for its plan. ``left_out`` counts samples that could not be decoded.
    """

    accuracy: float | None
    steps: int
    seconds: float
    first_loss: float
    last_loss: float
    losses: tuple[float, ...]
    samples_per_s: float
    seconds_per_iteration: float
    predicted_iteration_s: float
    measured_iteration_s: float
    prediction_error: float
    bubble: float
    plans: int
    hits: int
    reused: int
    fallbacks: Mapping[str, int]
    newest_reasons: tuple[str, ...]
    planner_restarts: int
    plan_s: float
    lead: float
    waited_s: float
    stall: float
    left_out: int = 0


def summarise(
    records: Sequence[StepRecord],
    statistics: SourceStatistics,
    *,
    accuracy: float | None = None,
    seconds: float | None = None,
) -> Summary:
    """The summary of a run's steps and of its plans.

    ``seconds`` is the run's wall time, the steps' sum by default. Raises ValueError for a run
    without steps.
    """
    if not records:
        raise ValueError("a run without steps has no summary; train at least one step")
    losses = tuple(record.loss for record in records)
    stepping = sum(record.seconds for record in records)
    errors = [abs(r.predicted_s - r.measured_s) / r.measured_s for r in records if r.measured_s > 0]
    return Summary(
        accuracy=accuracy,
        steps=len(records),
        seconds=stepping if seconds is None else seconds,
        first_loss=fmean(losses[:_WINDOW]),
        last_loss=fmean(losses[-_WINDOW:]),
        losses=losses,
        samples_per_s=sum(record.samples for record in records) / stepping if stepping > 0 else 0.0,
        seconds_per_iteration=median(record.seconds for record in records),
        predicted_iteration_s=median(record.predicted_s for record in records),
        measured_iteration_s=median(record.measured_s for record in records),
        prediction_error=median(errors) if errors else 0.0,
        bubble=median(record.bubble for record in records),
        plans=statistics.planned,
        hits=statistics.hits,
        reused=statistics.reused,
        fallbacks=dict(statistics.fallbacks),
        newest_reasons=tuple(statistics.reasons),
        planner_restarts=statistics.restarts,
        plan_s=statistics.plan_seconds,
        lead=statistics.lead,
        waited_s=statistics.waited,
        stall=_share(records[1:]),
    )


def _share(records: Sequence[StepRecord]) -> float:
    """Of the steps' time, the share that was waited for plans."""
    total = sum(record.measured_s for record in records)
    return sum(record.stall_s for record in records) / total if total > 0 else 0.0


def write_summary(path: str | Path, summary: Summary) -> None:
    """Write the summary as JSON, atomically; ValueError where a loss is not finite."""
    write_json(path, {"format": FORMAT, "version": VERSION, **asdict(summary)})


def table(summary: Summary, title: str = "run") -> Table:
    """The summary for a terminal."""
    from rich.table import Table

    rows = [
        ("accuracy", "none" if summary.accuracy is None else f"{summary.accuracy:.2%}"),
        ("loss", f"{summary.first_loss:.4f} -> {summary.last_loss:.4f}"),
        ("steps", f"{summary.steps} in {summary.seconds:.1f} s"),
        ("samples/s", f"{summary.samples_per_s:.1f}"),
        ("s/iteration", f"{summary.seconds_per_iteration:.4f}"),
        ("iteration, predicted", f"{summary.predicted_iteration_s:.4f} s"),
        ("iteration, measured", f"{summary.measured_iteration_s:.4f} s"),
        ("prediction error", f"{summary.prediction_error:.1%}"),
        ("bubble", f"{summary.bubble:.1%}"),
        ("plans", f"{summary.plans}, each made in {summary.plan_s:.4f} s"),
        ("  there in time", str(summary.hits)),
        ("  of an equal batch", str(summary.reused)),
        ("planned ahead", f"{summary.lead:g} steps"),
        ("waited for plans", f"{summary.waited_s:.2f} s"),
        ("stall", f"{summary.stall:.2%} of an iteration"),
        ("fallbacks", str(sum(summary.fallbacks.values()))),
        *((f"  {cause}", str(count)) for cause, count in summary.fallbacks.items()),
        ("planner restarts", str(summary.planner_restarts)),
    ]
    shown = Table(title=title, show_header=False, title_justify="left")
    shown.add_column("figure")
    shown.add_column("value", justify="right")
    for row in rows:
        shown.add_row(*row)
    return shown
