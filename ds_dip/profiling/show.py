"""A check's figures and a dataset's histograms on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

_BARS = " ▁▂▃▄▅▆▇█"
_PLAIN_WIDTH = 120


def show_check(document: Mapping[str, Any]) -> None:
    """Errors against their targets, with the machine's noise beside them, and by kind of stage."""
    console, table = _console(), Table("predicted against measured", "error", "target", "noise of the machine")
    rows = (
        ("layers, median", "layer_median_error", "layer"),
        ("stages, median", "stage_median_error", "stage"),
        ("iterations, mean", "iteration_mean_error", "iteration"),
    )
    for title, name, what in rows:
        target = document["targets"].get(name)
        table.add_row(title, _percent(document[name]), _percent(target), _percent(document["noise"][what]))
    table.add_row("single iterations, mean", _percent(document["single_iteration_mean_error"]), "", "")
    console.print(table)
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["rows"]:
        if row["what"] == "stage":
            kinds.setdefault(row["name"].partition(" of ")[0], []).append(row)
    stages = Table("stage", "count", "predicted", "measured", "median error", "noise")
    for kind, found in sorted(kinds.items()):
        stages.add_row(
            kind,
            str(len(found)),
            f"{1e3 * median(r['predicted'] for r in found):.2f} ms",
            f"{1e3 * median(r['measured_median'] for r in found):.2f} ms",
            _percent(median(r["error"] for r in found)),
            _percent(median(r["noise"] for r in found)),
        )
    console.print(stages)
    for reason in document["reasons"]:
        console.print(reason)


def _console() -> Console:
    """A console that is wide where it is no terminal, so that tables are not cut."""
    console = Console(markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    return console


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def show_data(document: Mapping[str, Any], out: Path) -> None:
    """Every module's histograms, a bar a bin."""
    table = Table("module", "of a sample", "mean", "median", "95 %", "largest", "smallest to largest")
    for name, counts in document["modules"].items():
        for count, of in counts.items():
            _row(table, name, count, of)
    _row(table, "loss", "tokens", document["loss_tokens"])
    console = _console()
    console.print(table)
    console.print(f"{document['samples']} samples of {document['dataset']['factory']}: {out}, {document['batch']}")


def _row(table: Table, name: str, count: str, of: Mapping[str, Any]) -> None:
    quantiles = of["quantiles"]
    table.add_row(
        name,
        count,
        f"{of['mean']:.1f}",
        f"{quantiles['0.5']:g}",
        f"{quantiles['0.95']:g}",
        f"{quantiles['1']:g}",
        bars(of["counts"]),
    )


def bars(counts: Sequence[int]) -> str:
    """Counts as blocks of eight heights; what is there at all shows."""
    most = max(counts)
    return "".join(_BARS[0 if not c else max(1, round(8 * c / most))] for c in counts)
