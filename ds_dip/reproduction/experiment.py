"""What an experiment is: parts that can be run alone, what each finds, and the figures that this is compared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ds_dip.partition.scoring import UnfitError
from ds_dip.reproduction.cases import Case, Effort, make_case
from ds_dip.reproduction.contenders import Outcome
from ds_dip.reproduction.published import TOLERANCE, Figure

#: Told before every step of a part: what it is.
Progress = Callable[[str], None]
Run = Callable[[Case], Outcome]


@dataclass(frozen=True, slots=True)
class Settings:
    """What every part of ``paper`` is run with; ``factor`` is the calibration (see ``calibration``)."""

    quick: bool
    effort: Effort
    models: Path
    devices: Path
    factor: float = 1.0
    paper: str = "dip"

    def case(
        self,
        name: str,
        device: str = "h800",
        *,
        effort: Effort | None = None,
        ranks: int | None = None,
        limited: bool = True,
        collectives: bool = True,
        unevenness: float | None = None,
        calibrated: bool = True,
    ) -> Case:
        """A model on a device (see ``make_case``)."""
        return make_case(
            name,
            effort or self.effort,
            self.models,
            self.devices,
            device,
            ranks=ranks,
            limited=limited,
            collectives=collectives,
            factor=self.factor if calibrated else 1.0,
            unevenness=unevenness,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a part's table: a system, or a setting, in a ``group`` that is compared within itself.

    ``seconds`` are those of the mean iteration, None where it could not run, for which ``notes`` has the ``refusal``.
    ``gap`` is the share by which they are above the lower bound; None where there is no schedule to bound.
    ``values`` are further numbers by what they are.
    """

    group: str
    system: str
    title: str
    seconds: float | None
    gap: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What a part found: rows of a table, lines by plot, and numbers by name."""

    rows: tuple[Row, ...] = ()
    lines: Mapping[str, tuple[Line, ...]] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)


Results = Mapping[str, Result]
"""By part's key."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an experiment: it is run alone, and what it finds is kept in a file of its own.

    ``cost`` is about how many seconds of a core it takes, ``steps`` how often it tells its progress.
    """

    key: str
    title: str
    cost: float
    steps: int
    run: Callable[[Settings, Progress], Result]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published figure beside ours, and which of ``ASSUMPTIONS`` may be behind a difference.

    ``ours`` is None where it could not be simulated; ``where`` says on which model and over which system it is.
    ``changed`` is what ours is with an assumption changed, by what was changed.
    """

    figure: Figure
    ours: float | None
    assumptions: tuple[str, ...] = ()
    where: str = ""
    changed: Mapping[str, float] = field(default_factory=dict)

    @property
    def deviation(self) -> float | None:
        """How far ours is above the paper's, as a share; None where one of them is not known."""
        return None if self.ours is None or self.figure.value is None else self.ours / self.figure.value - 1

    @property
    def agrees(self) -> bool | None:
        """Whether it is within ``TOLERANCE``, or below what the paper has as a limit; None where the paper has none."""
        if self.figure.value is None:
            return None
        if self.deviation is None:
            return False
        return (self.deviation if self.figure.limit else abs(self.deviation)) <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Plot:
    """How lines of one name, from all parts, are drawn."""

    name: str
    title: str
    x: str
    y: str
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Experiment:
    """One figure or table of the paper: its parts, how it is compared, and what its section says.

    ``text`` tells what is simulated, ``quick`` what of it the quick run does; ``columns`` are the rows' values that its
    table has, with their formats. Throughput is told over the system ``reference`` of the same group, and that of the
    system ``winner``, where one is named, over every other one.
    """

    key: str
    title: str
    text: str
    parts: Callable[[bool], tuple[Part, ...]]
    compare: Callable[[Results], list[Comparison]]
    columns: Mapping[str, str] = field(default_factory=dict)
    plots: tuple[Plot, ...] = ()
    reference: str = "megatron"
    winner: str = ""
    quick: str = ""


def simulate(case: Case, systems: Mapping[str, tuple[str, Run]], progress: Progress, group: str = "") -> list[Row]:
    """A row for every system (title and how it runs), in a group that is the model's name where none is given."""
    rows = []
    for name, (title, run) in systems.items():
        progress(f"{case.name} on {case.setup.device}: {title}")
        try:
            rows.append(row_of(group or case.name, name, title, run(case)))
        except UnfitError as error:
            rows.append(Row(group or case.name, name, title, None, notes={"refusal": str(error)}))
    return rows


def row_of(group: str, system: str, title: str, outcome: Outcome, **values: float) -> Row:
    """An outcome as a row."""
    notes = {"memory": outcome.strategy, "settings": outcome.detail}
    return Row(group, system, title, outcome.mean, outcome.gap, values, notes)


def rows_of(results: Results, prefix: str = "") -> list[Row]:
    """The rows of all parts whose keys begin so."""
    return [row for key, result in results.items() if key.startswith(prefix) for row in result.rows]


def speedup(rows: Sequence[Row], system: str, over: str) -> float | None:
    """Throughput of one system over another in one group; None where either could not run."""
    means = {row.system: row.seconds for row in rows if row.seconds is not None}
    return means[over] / means[system] if system in means and over in means else None
