"""``ds-dip bench schedule``: how good and how fast the schedule searcher is on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import MOST_WORKERS, Command, Seconds
from ds_dip.commands._measured import console_of, deliver
from ds_dip.commands._progress import waiting
from ds_dip.files import check_folder, write_atomic, write_json
from ds_dip.scheduling import benchmark
from ds_dip.scheduling.curves import plot

PARTS = ("speed", "short", "small", "large", "curves")


@click.command(
    "schedule",
    cls=Command,
    examples=["ds-dip bench schedule --part speed", "ds-dip bench schedule --out results --workers 2"],
)
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Measure only this part (repeatable).")
@click.option("--seconds", type=Seconds(), default=10.0, show_default=True,
              help="Seconds of a long search; small problems get a tenth.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Seeds a small problem.")
@click.option("--fresh", type=click.IntRange(min=0), default=4, show_default=True, help="Small problems not known.")
@click.option("--workers", type=click.IntRange(1, MOST_WORKERS), default=2, show_default=True,
              help="Workers on large problems.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Directory for schedule.json and curves.svg.")
def command(
    as_json: bool, parts: tuple[str, ...], seconds: float, seeds: int, fresh: int, workers: int, out: Path | None
) -> None:
    """Measure kernels, gaps on small and large problems, and search curves."""
    wanted = parts or PARTS
    if out is not None:
        check_folder(out, ("schedule.json", "curves.svg"))
    document: dict[str, Any] = {"machine": benchmark.machine()}
    measured: dict[str, Callable[[], Any]] = {
        "speed": lambda: list(benchmark.speed()),
        "short": lambda: list(benchmark.short()),
        "small": lambda: list(benchmark.small(seconds / 10, seeds, fresh)),
        "large": lambda: list(benchmark.large(seconds, workers)),
        "curves": lambda: benchmark.curves(seconds),
    }
    chosen = [part for part in PARTS if part in wanted]
    with waiting("measuring", len(chosen)) as heard:
        for number, part in enumerate(chosen):
            heard({"done": number})
            document[part] = measured[part]()
    if out is not None:
        write_json(out / "schedule.json", document)
        if "curves" in document:
            write_atomic(out / "curves.svg", plot(document["curves"]))
    deliver(document, as_json, _show)


def _show(document: dict[str, Any]) -> None:
    """Tables on the terminal."""
    from rich.table import Table

    console = console_of(document)
    for part in ("speed", "short", "small", "large"):
        rows = document.get(part, [])
        if not rows:
            continue
        columns = list(dict.fromkeys(name for row in rows for name in row))
        table = Table(*columns, title=part)
        for row in rows:
            table.add_row(*(_cell(name, row.get(name)) for name in columns))
        console.print(table)
    for method, curve in document.get("curves", {}).items():
        seconds, evaluations, makespan = curve[-1]
        console.print(f"{method}: makespan {makespan:g} after {seconds:.1f} s and {evaluations:,} evaluations")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) and ("gap" in name or "greedy" in name or "back" in name):
        return f"{100 * value:.2f} %"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return str(value)
