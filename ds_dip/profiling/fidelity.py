"""Predicted against measured: layers by themselves, stages and iterations in the engine, and the machine's noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

#: What a table should reach: the median error of stages, the mean error of iterations.
STAGE_TARGET, ITERATION_TARGET = 0.05, 0.03


@dataclass(frozen=True, slots=True)
class Compared:
    """One layer, stage or iteration: ``predicted`` seconds, and those ``measured`` each time that it ran."""

    what: str
    name: str
    predicted: float
    measured: tuple[float, ...]

    @property
    def middle(self) -> float:
        """The median measurement."""
        return median(self.measured)

    @property
    def bias(self) -> float:
        """By how much the prediction is above the median measurement, relative to it."""
        return self.predicted / self.middle - 1.0

    @property
    def noise(self) -> float:
        """Mean distance of the measurements from their median, relative to it; 0 of a single one."""
        return mean(abs(value / self.middle - 1.0) for value in self.measured)


def errors(rows: Sequence[Compared], what: str) -> list[float]:
    """Relative errors against the median measurement of every layer, stage or iteration."""
    return [abs(row.bias) for row in rows if row.what == what]


def report(rows: Sequence[Compared]) -> dict[str, Any]:
    """The document of ``ds-dip profile --check --json``."""
    document: dict[str, Any] = {}
    for what, join, name in (
        ("layer", median, "layer_median_error"),
        ("stage", median, "stage_median_error"),
        ("iteration", mean, "iteration_mean_error"),
    ):
        document[name] = join(errors(rows, what)) if errors(rows, what) else None
    document["noise"] = {what: _noise(rows, what) for what in ("layer", "stage", "iteration")}
    document["single_iteration_mean_error"] = _single(rows)
    document["two_sided"] = {what: _two_sided(rows, what) for what in ("stage", "iteration")}
    document["bias_by_round"] = {what: _by_round(rows, what) for what in ("stage", "iteration")}
    document["targets"] = {"stage_median_error": STAGE_TARGET, "iteration_mean_error": ITERATION_TARGET}
    document["reasons"] = reasons(document, rows)
    document["rows"] = [
        asdict(row) | {"measured_median": row.middle, "error": abs(row.bias), "noise": row.noise} for row in rows
    ]
    return document


def _noise(rows: Sequence[Compared], what: str) -> float | None:
    noise = [row.noise for row in rows if row.what == what and len(row.measured) > 1]
    return mean(noise) if noise else None


def _single(rows: Sequence[Compared]) -> float | None:
    """Mean error against every single iteration, the machine's noise included."""
    found = [abs(r.predicted / value - 1.0) for r in rows if r.what == "iteration" for value in r.measured]
    return mean(found) if found else None


def _two_sided(rows: Sequence[Compared], what: str) -> float | None:
    """Mean error that is left when all predictions are moved by their median one: what no busier machine explains."""
    found = [row.bias for row in rows if row.what == what]
    return mean(abs(bias - median(found)) for bias in found) if found else None


def _by_round(rows: Sequence[Compared], what: str) -> list[float]:
    """Median of prediction over measurement, less 1, each time that everything ran: how the machine drifts."""
    own = [row for row in rows if row.what == what]
    rounds = min((len(row.measured) for row in own), default=0)
    return [median(row.predicted / row.measured[number] - 1.0 for row in own) for number in range(rounds)]


def reasons(document: Mapping[str, Any], rows: Sequence[Compared]) -> list[str]:
    """For every target that is missed, a sentence why: what part is one-sided, and what the machine's noise is."""
    found = []
    for name, what, target in (
        ("stage_median_error", "stage", STAGE_TARGET),
        ("iteration_mean_error", "iteration", ITERATION_TARGET),
    ):
        error, noise = document[name], document["noise"][what]
        if error is None or error <= target:
            continue
        bias = median(row.bias for row in rows if row.what == what)
        side = "above" if bias > 0 else "below"
        sentence = f"{name} is {100 * error:.1f} %, the target {100 * target:g} %: "
        sentence += f"half of the predictions are at least {100 * abs(bias):.1f} % {side} the measured ones"
        if noise is not None:
            sentence += f", and the same {what} repeated is {100 * noise:.1f} % off its own median on average"
        found.append(sentence)
        if bias and abs(bias) > error / 2:
            rounds = document["bias_by_round"][what]
            drift = ", ".join(f"{100 * value:+.1f}" for value in rounds)
            found.append(
                f"most of it is one-sided: the machine is {'faster' if bias > 0 else 'slower'} now than it was for the "
                f"table (round by round the predictions were {drift} % off; without the one-sided part the mean error "
                f"is {100 * document['two_sided'][what]:.1f} %); run ds-dip profile again when it is as busy as in "
                "training"
            )
        elif what == "stage":
            worst = sorted({row.name.rpartition(" of ")[0] for row in rows if row.what == what})
            parts = [f"{kind} {100 * _of_kind(rows, kind):.1f} %" for kind in worst]
            found.append("by kind of stage, the median error is " + ", ".join(parts))
    return found


def _of_kind(rows: Sequence[Compared], kind: str) -> float:
    return median(abs(r.bias) for r in rows if r.what == "stage" and r.name.rpartition(" of ")[0] == kind)
