"""``ds-dip reproduce``: a paper's evaluation again, in simulation, with its figures beside ours."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands import Command, Shipped, refusing
from ds_dip.files import check_folder, write_atomic, write_json

if TYPE_CHECKING:
    from ds_dip.reproduction.experiment import Part
    from ds_dip.reproduction.running import Watch

_FOLDER = click.Path(path_type=Path, file_okay=False)
_GIVEN = Shipped(file_okay=False, exists=True)
#: Folders of reports where nothing is said: one a paper, so that none takes another's place.
_OUT = {"dip": "reproduction", "dflop": "reproduction-dflop"}
#: Processes that are started where nothing is said.
_JOBS = min(2, os.cpu_count() or 1)
#: Under the folder of the report.
_PARTS, _QUICK_PARTS, _PLOTS = "parts", "parts-quick", "plots"


@click.command(
    "reproduce",
    cls=Command,
    examples=[
        "ds-dip reproduce dip --quick",
        "ds-dip reproduce dip --jobs 8 --out reproduction",
        "ds-dip reproduce dflop --quick",
    ],
)
@click.argument("paper", type=click.Choice(list(_OUT)))
@click.option("--quick", is_flag=True, help="Fewer models, one small batch: about a minute of one core.")
@click.option("--out", type=_FOLDER, show_default=", ".join(_OUT.values()),
              help="Folder for report.html, report.md and report.json; made where it is missing.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 64), default=_JOBS, show_default=True,
              help="Processes; they change nothing of what is found.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Run again what an earlier run has left in the folder.")
@click.option("--models", type=_GIVEN, default=Path("model_configs"), show_default=True,
              help="Folder of the models' descriptions.")  # fmt: skip
@click.option("--devices", type=_GIVEN, default=Path("profiling/devices"), show_default=True,
              help="Folder of the devices' descriptions.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the document, not what differs.")
def command(
    paper: str, quick: bool, out: Path | None, jobs: int, fresh: bool, models: Path, devices: Path, as_json: bool
) -> None:
    """Simulate the evaluation of PAPER and write a report that sets each figure beside the paper's.

    The report's first page tells what differs by more than 15 %, and what of the evaluation is missing. A run that was
    interrupted goes on where it was with the same command.
    """
    from ds_dip.reproduction import charts, dip
    from ds_dip.reproduction.catalogue import parts_of
    from ds_dip.reproduction.dflop import evaluation
    from ds_dip.reproduction.page import page
    from ds_dip.reproduction.report import report
    from ds_dip.reproduction.store import path_of
    from ds_dip.reproduction.tables import drawings

    reproduce = {"dip": dip.reproduce, "dflop": evaluation.reproduce}[paper]
    out = Path(_OUT[paper]) if out is None else out
    # A quick run leaves the parts of the long one alone.
    kept = out / (_QUICK_PARTS if quick else _PARTS)
    parts = parts_of(quick, paper)
    targets = [out / f"report.{kind}" for kind in ("json", "md", "html")]
    check_folder(out, [target.name for target in targets])
    check_folder(kept, [path_of(kept, key).name for key in parts])
    check_folder(out / _PLOTS, ["figures.svg"])
    with _progress(parts) as (done, watch):
        if fresh:
            for key in parts:
                path_of(kept, key).unlink(missing_ok=True)
        try:
            with refusing():
                document = reproduce(models, devices, kept, quick=quick, jobs=jobs, watch=watch)
        except KeyboardInterrupt:
            click.echo(
                f"interrupted: {len(done)} of {len(parts)} parts are in {kept}; the same command goes on with "
                "the others",
                err=True,
            )
            sys.exit(128 + signal.SIGINT)
    for name, drawing in drawings(document).items():
        write_atomic(out / _PLOTS / f"{name}.svg", charts.alone(drawing))
    write_json(targets[0], document)
    write_atomic(targets[1], report(document))
    write_atomic(targets[2], page(document))
    if as_json:
        click.echo(json.dumps(document))
        return
    _show(paper, document, targets[2])


def _show(paper: str, document: dict[str, Any], path: Path) -> None:
    from ds_dip.reproduction.tables import deviation, every, headline, ours, published

    for own in every(document):
        click.echo(f"{own['what']}: {ours(own)}, the paper {published(own)} ({deviation(own)})")
    click.echo(f"{paper}: {headline(document)} {path} written")


@contextmanager
def _progress(parts: Mapping[str, Part]) -> Iterator[tuple[set[str], Watch]]:
    """The keys of parts that are done, and what watches all: a bar on a terminal, nothing elsewhere.

    The bar is measured in the seconds of a core that parts are known to take about.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from ds_dip.reproduction.running import Event

    done: set[str] = set()
    steps: dict[str, int] = dict.fromkeys(parts, 0)
    console = Console(stderr=True)
    columns = (
        BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[parts]}"), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=sum(part.cost for part in parts.values()), parts="")

        def watch(event: Event) -> None:
            part = event.part
            if event.done:
                done.add(part.key)
            else:
                steps[part.key] += 1
            completed = sum(
                own.cost * (1.0 if key in done else min(1.0, max(0, steps[key] - 1) / own.steps))
                for key, own in parts.items()
            )
            what = f"{part.title}: {event.what}" if event.what else None
            bar.update(task, completed=completed, description=what, parts=f"{len(done)}/{len(parts)} parts")

        yield done, watch
