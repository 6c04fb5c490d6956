"""What ``ds-dip replay`` tells of a recording: where steps parted from their plans, and how they are planned now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from ds_dip.files import FileError, first_line
from ds_dip.planner.adopted import Adopted, Version
from ds_dip.planner.plan import Planner
from ds_dip.planner.record import StepPlan, seal
from ds_dip.planner.recording import RecordedStep, Recording, Run
from ds_dip.programs.program import stages_of
from ds_dip.reporting.parting import Divergence, Gap, Group, Parting, Parts
from ds_dip.scheduling import InfeasibleError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FORMAT, VERSION = "ds-dip/replay", 1
#: Groups and gaps of a step that are shown.
SHOWN = 5
_PARTS = (
    ("stages_s", "stages longer"),
    ("waiting_s", "waiting"),
    ("end_s", "reduction and step"),
    ("unexplained_s", "another version's times"),
)


@dataclass(frozen=True, slots=True)
class Replanned:
    """A step planned again from its metadata by the recorded settings, costs and corrections, with no clock.

    ``same`` says whether all of the plan is the recorded one, ``same_order`` whether the stages' order is. ``problem``
    says why it could not be planned; then there is no makespan.
    """

    same: bool = False
    same_order: bool = False
    makespan_s: float | None = None
    schedule: str = ""
    evaluations: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A step of a recording, taken apart and planned again."""

    parts: Parts
    again: Replanned


class Replay:
    """The steps of a recording, or ``only`` one, taken apart.

    Raises FileError for a step that was not recorded, or a file that cannot be used.
    """

    def __init__(self, recording: Recording, only: int | None = None) -> None:
        self.recording = recording
        self._partings: dict[str, Parting] = {}
        self._planners: dict[str, Planner | str] = {}
        steps = recording.steps if only is None else (only,)
        self.steps = tuple(self._parts(recording.read(step)) for step in steps)

    def worst(self, count: int) -> tuple[Parts, ...]:
        """The steps whose prediction was furthest off, by their share of the measured iteration."""
        return tuple(sorted(self.steps, key=lambda parts: -abs(parts.error))[:count])

    def again(self, parts: Parts) -> Replayed:
        """The step planned again."""
        return Replayed(parts, self._again(self.recording.read(parts.step)))

    def run(self) -> Run:
        """The settings of the last step."""
        return self.recording.run(self.recording.read(self.steps[-1].step).run)

    def _parts(self, found: RecordedStep) -> Parts:
        if found.run not in self._partings:
            self._partings[found.run] = Parting(self.recording.run(found.run))
        try:
            return self._partings[found.run].parts(found)
        except (KeyError, IndexError) as error:
            raise FileError(
                f"{self.recording.folder}: the plan of step {found.step} is none of the recorded partition ({error}); "
                "record the run again"
            ) from error

    def _again(self, found: RecordedStep) -> Replanned:
        if found.run not in self._planners:
            self._planners[found.run] = _planner(self.recording.run(found.run))
        planner = self._planners[found.run]
        return Replanned(problem=planner) if isinstance(planner, str) else plan_again(found.plan, planner)


def plan_again(plan: StepPlan, planner: Planner) -> Replanned:
    """A recorded plan beside what its settings, corrections and all of its search's evaluations give now."""
    planner.corrections = plan.corrections
    planner.batches.adopt(Adopted((Version(0, plan.batch.adopted),)))
    fallback = plan.kind == "fallback"
    try:
        again = planner.fallback(plan.step, plan.reason) if fallback else planner.plan(plan.step)
    except (ValueError, InfeasibleError) as error:
        return Replanned(problem=first_line(error))
    if again.batch.microbatches != plan.batch.microbatches:
        return Replanned(problem="its batch is another one now: samples or their sizes have changed since")
    orders = [[stages_of(program) for program in of.programs] for of in (plan, again)]
    return Replanned(
        # What plans have come to tell since it was recorded does not make another one of it.
        same=again.hash == seal(plan).hash,
        same_order=orders[0] == orders[1],
        makespan_s=again.makespan,
        schedule=again.schedule,
        evaluations=0 if fallback else planner.settings.evaluations,
    )


def _planner(run: Run) -> Planner | str:
    try:
        # What a paced search finds depends on clocks and on the batch before.
        planner = Planner(replace(run.settings, paced=False))
    except (ValueError, OSError) as error:
        return first_line(error)
    if len(planner.dataset) != run.samples:
        return f"the dataset has {len(planner.dataset)} samples now, recorded were {run.samples}"
    return planner


def document(replay: Replay, shown: Sequence[Replayed]) -> dict[str, Any]:
    """Everything as JSON: a row a step, and the shown ones whole."""
    run = replay.run()
    brief = [{**asdict(replace(parts, groups=(), gaps=())), "error": parts.error} for parts in replay.steps]
    for row in brief:
        del row["groups"], row["gaps"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "folder": str(replay.recording.folder),
        "model": run.settings.model.name,
        "ranks": run.settings.partition.ranks,
        "versions": dict(run.versions),
        "steps": brief,
        "shown": [{**asdict(one.parts), "error": one.parts.error, "again": asdict(one.again)} for one in shown],
    }


def show(console: Console, replay: Replay, shown: Sequence[Replayed], *, whole: bool) -> None:
    """The tables: ``whole`` steps in all detail, or the recording as such and one row for each shown step."""
    if whole:
        for one in shown:
            _show_step(console, one)
        return
    run, kinds = replay.run(), [parts.kind for parts in replay.steps]
    steps = [parts.step for parts in replay.steps]
    console.print(
        f"{replay.recording.folder}: {len(steps)} steps, {steps[0]} to {steps[-1]}, {kinds.count('fallback')} of them "
        f"fallbacks; {run.settings.model.name} on {run.settings.partition.ranks} ranks",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_overview(replay.steps))
    if shown:
        console.print(_rows(shown))
    for one in shown:
        _sentences(console, one, f"step {one.parts.step} ")


def _overview(steps: Sequence[Parts]) -> Table:
    table = _table("over all steps", "ms", "median", "mean")
    measured = [parts.measured_iteration_s for parts in steps]
    rows = {
        "predicted iteration": [parts.predicted_iteration_s for parts in steps],
        "measured iteration": measured,
        "difference": [parts.difference_s for parts in steps],
        **{f"  {words}": values for words, values in _values(steps)},
    }
    for words, values in rows.items():
        table.add_row(words, _ms(median(values)), _ms(fmean(values)))
    errors = [parts.error for parts in steps]
    table.add_row("prediction error", f"{median(map(abs, errors)):.1%}", f"{fmean(map(abs, errors)):.1%}")
    return table


def _values(steps: Sequence[Parts]) -> Iterable[tuple[str, list[float]]]:
    for name, words in _PARTS:
        values = [getattr(parts, name) for parts in steps]
        if name != "unexplained_s" or any(abs(value) > 1e-9 for value in values):
            yield words, values


def _rows(shown: Sequence[Replayed]) -> Table:
    table = _table("furthest off, ms", "step", "predicted", "measured", "error", "stages", "waiting", "end")
    for one in shown:
        parts = one.parts
        table.add_row(
            f"{parts.step}{'' if parts.kind == 'planned' else ' (fallback)'}",
            _ms(parts.predicted_iteration_s),
            _ms(parts.measured_iteration_s),
            f"{parts.error:+.1%}",
            _signed(parts.stages_s),
            _signed(parts.waiting_s),
            _signed(parts.end_s),
        )
    return table


def _sentences(console: Console, one: Replayed, who: str = "") -> None:
    for words, sentence in (
        ("parts from its plan at", _parts_at(one.parts.divergence)),
        ("planned again", _again(one.again, one.parts.predicted_makespan_s)),
    ):
        console.print(f"{who}{words}: {sentence}", highlight=False, soft_wrap=True)


def _show_step(console: Console, one: Replayed) -> None:
    parts, waiting = one.parts, one.parts.waiting
    about = f"step {parts.step}, {parts.kind} ({parts.schedule})" + (f": {parts.reason}" if parts.reason else "")
    table = _table(about, "ms", "predicted", "measured", "difference")
    iteration = parts.predicted_iteration_s, parts.measured_iteration_s
    table.add_row("iteration", *map(_ms, iteration), _signed(parts.difference_s))
    table.add_row(
        "makespan",
        _ms(parts.predicted_makespan_s),
        _ms(parts.measured_makespan_s),
        _signed(parts.measured_makespan_s - parts.predicted_makespan_s),
    )
    for words, values in _values([parts]):
        table.add_row(f"  {words}", "", "", _signed(values[0]))
        if words == "waiting":
            for inner, seconds in (
                ("for the plan", waiting.plan_s),
                ("before the first stage", waiting.begin_s),
                ("for messages", waiting.transfers_s),
                ("between stages of a rank", waiting.between_s),
                ("hidden by other stages", waiting.hidden_s),
            ):
                table.add_row(f"    {inner}", "", "", _signed(seconds))
    console.print(table)
    console.print(_groups(parts.groups[:SHOWN]))
    if gaps := [gap for gap in parts.gaps[:SHOWN] if gap.seconds]:
        console.print(_gaps(gaps))
    _sentences(console, one)


def _groups(groups: Sequence[Group]) -> Table:
    table = _table(
        "stages, largest effect on the makespan first", "stages", "number", "predicted", "measured", "effect"
    )
    for group in groups:
        table.add_row(
            f"{group.kind} {group.module}, rank {group.rank}",
            str(group.stages),
            _ms(group.predicted_s),
            _ms(group.measured_s),
            _signed(group.effect_s),
        )
    return table


def _gaps(gaps: Sequence[Gap]) -> Table:
    table = _table("waits on the measured critical path, longest first", "stage", "after", "ms")
    for gap in gaps:
        after = "the batch's first stage" if gap.source is None else f"{_stage(gap.source)}, rank {gap.source_rank}"
        table.add_row(f"{_stage(gap.stage)}, rank {gap.rank}", after, _signed(gap.seconds))
    return table


def _table(title: str, first: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="left" if column == "after" else "right")
    return table


def _parts_at(divergence: Divergence | None) -> str:
    if divergence is None:
        return "nowhere"
    where = f"{_stage(divergence.stage)} on rank {divergence.rank}"
    how = "late" if divergence.late_s > 0 else "early"
    return (
        f"{where}, {_ms(abs(divergence.late_s))} ms {how} (started {_signed(divergence.started_late_s)}, took "
        f"{_signed(divergence.longer_s)})"
    )


def _again(again: Replanned, recorded: float) -> str:
    if again.makespan_s is None:
        return f"not possible: {again.problem}"
    if again.same:
        return "the same plan"
    change = again.makespan_s / recorded - 1.0 if recorded else 0.0
    order = "the same order" if again.same_order else "another order"
    return f"{order}, makespan {_ms(again.makespan_s)} ms ({change:+.2%}, {again.evaluations} evaluations)"


def _stage(stage: Any) -> str:
    return f"{stage.kind} {stage.module} {stage.microbatch}.{stage.sub} chunk {stage.chunk}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _signed(seconds: float) -> str:
    return f"{1e3 * seconds:+.2f}"
