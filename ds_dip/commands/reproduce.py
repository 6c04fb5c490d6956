"""``ds-dip reproduce``: a paper's evaluation again, in simulation, with its figures beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands import refusing
from ds_dip.files import check_writable, write_atomic, write_json

if TYPE_CHECKING:
    from ds_dip.reproduction.results import Progress

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("reproduce")
@click.argument("paper", type=click.Choice(["dip", "dflop"]))
@click.option("--quick", is_flag=True, help="Two models, one small batch: half a minute.")
@click.option("--out", type=_FOLDER, default=Path("reproduction"), show_default=True,
              help="Folder for report.md and report.json; made where it is missing.")  # fmt: skip
@click.option("--models", type=_FOLDER, default=Path("model_configs"), show_default=True,
              help="Folder of the models' descriptions.")  # fmt: skip
@click.option("--devices", type=_FOLDER, default=Path("profiling/devices"), show_default=True,
              help="Folder of the devices' descriptions.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the document, not what differs.")
def command(paper: str, quick: bool, out: Path, models: Path, devices: Path, as_json: bool) -> None:
    """Simulate the evaluation of PAPER and write a report that sets each figure beside the paper's.

    The report's first page tells what differs by more than 15 %, and what of the evaluation is missing.
    """
    from ds_dip.reproduction.dflop import evaluation
    from ds_dip.reproduction.dip import reproduce, total
    from ds_dip.reproduction.report import report

    out.mkdir(parents=True, exist_ok=True)
    targets = out / "report.json", out / "report.md"
    for target in targets:
        check_writable(target)
    if paper == "dflop":
        with refusing(), _progress(evaluation.total(quick)) as progress:
            document = evaluation.reproduce(models, devices, quick=quick, progress=progress)
        write_json(targets[0], document)
        write_atomic(targets[1], evaluation.page(document))
        click.echo(json.dumps(document) if as_json else evaluation.page(document), nl=as_json)
        return
    with refusing(), _progress(total(quick)) as progress:
        document = reproduce(models, devices, quick=quick, progress=progress)
    write_json(targets[0], document)
    write_atomic(targets[1], report(document))
    if as_json:
        click.echo(json.dumps(document))
        return
    _show(paper, document, targets[1])


def _show(paper: str, document: dict[str, Any], path: Path) -> None:
    every = [own for group in document["comparisons"].values() for own in group]
    for own in every:
        ours = "not simulated" if own["ours"] is None else f"{own['ours'] - 1:+.1%}"
        deviation = "" if own["deviation"] is None else f" ({own['deviation']:+.1%})"
        click.echo(f"{own['what']}: {ours}, the paper {own['paper'] - 1:+.1%}{deviation}")
    agreeing = sum(own["agrees"] for own in every)
    click.echo(f"{paper}: {agreeing} of {len(every)} figures within {document['tolerance']:.0%}; {path} written")


@contextmanager
def _progress(systems: int) -> Iterator[Progress]:
    """A bar on a terminal: systems simulated of all, and the one that is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("reading", total=systems, completed=-1)
        yield lambda what: bars.update(task, advance=1, description=what)
