"""The second paper of ``ds-dip reproduce``: one document and one page, its cases one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ds_dip.commands import refusing
from ds_dip.files import check_folder, write_atomic, write_json


def run(out: Path, models: Path, devices: Path, *, quick: bool, as_json: bool) -> None:
    """Simulate DFLOP's evaluation; ``out`` gets report.json and report.md."""
    from ds_dip.reproduction.dflop import evaluation

    targets = out / "report.json", out / "report.md"
    check_folder(out, [target.name for target in targets])
    with refusing(), _progress(evaluation.total(quick)) as progress:
        document = evaluation.reproduce(models, devices, quick=quick, progress=progress)
    page = evaluation.page(document)
    write_json(targets[0], document)
    write_atomic(targets[1], page)
    click.echo(json.dumps(document) if as_json else page, nl=as_json)


@contextmanager
def _progress(cases: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal: cases simulated of all, and the one that is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("reading", total=cases, completed=-1)
        yield lambda what: bars.update(task, advance=1, description=what)
