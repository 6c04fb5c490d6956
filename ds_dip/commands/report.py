"""``ds-dip report``: writes a plan's or a run's timeline as one HTML page to look into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ds_dip.commands import Command, is_ours
from ds_dip.commands._progress import waiting

if TYPE_CHECKING:
    from ds_dip.reporting.viewer.document import Report


@click.command(
    "report",
    cls=Command,
    examples=[
        "ds-dip report runs/quickstart --out report.html",
        "ds-dip report runs/quickstart --step 99 --steps 20",
        "ds-dip report plan.json --problem problem.json",
    ],
)
@click.argument("source", metavar="PLAN|RUN", type=click.Path(path_type=Path))
@click.option("--problem", type=click.Path(path_type=Path), help="The problem that PLAN is for.")
@click.option("--unitless", is_flag=True, help="The problem's times and memory are plain numbers.")
@click.option("--step", type=click.IntRange(0), help="Of a run: the step to open; the last one by default.")
@click.option(
    "--steps",
    type=click.IntRange(1, 200),
    default=12,
    show_default=True,
    help="Of a run: how many steps' timelines go into the file, up to the opened one.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="Where to write the page.",
)
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written.")
def command(
    source: Path, problem: Path | None, unitless: bool, step: int | None, steps: int, out: Path, as_json: bool
) -> None:
    """Write a timeline as one HTML page: ranks, stages, transfers, memory and bubbles, to zoom, search and compare.

    PLAN is a plan file, with --problem; RUN is a run's folder, with timelines/ or recording/ in it. The page needs no
    network and no other file; press ? in it for its keys.
    """
    from ds_dip.files import FileError, check_writable
    from ds_dip.reporting.viewer.page import write_page
    from ds_dip.reporting.viewer.steps import report_of_run

    check_writable(out, (source, problem))
    if source.is_dir():
        if problem is not None or unitless:
            raise click.UsageError("--problem and --unitless go with a plan file, RUN is a folder; leave them out")
        with waiting("reading the run"):
            report = report_of_run(source, step=step, steps=steps)
    else:
        if step is not None:
            raise click.UsageError("--step goes with a run's folder, PLAN is a file; leave it out")
        with waiting("reading the plan"):
            report = _of_plan(source, problem, unitless)
    if is_ours(out):
        raise FileError(f"{out}: is a file that ds_dip reads, which the page would replace; name another file")
    write_page(out, report)
    shown = report.views[report.opened]
    tracks = [own.name for own in shown.courses]
    notes = [note for note in (shown.warning, *report.notes) if note]
    if as_json:
        told = {"opened": shown.name, "tracks": tracks, "stages": len(shown.bars), "ranks": shown.ranks}
        click.echo(json.dumps({**told, "views": len(report.views), "page": str(out), "notes": notes}))
        return
    click.echo(f"{shown.name}, {' and '.join(tracks)}, {len(shown.bars)} stages on {shown.ranks} ranks: {out}")
    for note in notes:
        click.echo(note)


def _of_plan(path: Path, problem: Path | None, unitless: bool) -> Report:
    from ds_dip.files import FileError
    from ds_dip.reporting.viewer.document import Report
    from ds_dip.reporting.viewer.planned import view_of_plan
    from ds_dip.scheduling.documents import read_plan, read_problem

    plan = read_plan(path)
    if problem is None:
        raise click.UsageError(f"{path}: a plan names only its tasks; give the problem it is for by --problem")
    task_graph, digest = read_problem(problem)
    if digest != plan.problem_sha256:
        raise FileError(
            f"{path}: is the plan of problem {plan.problem_sha256[:12]}…, {problem} is {digest[:12]}…; give the "
            "problem that it was made for"
        )
    view = view_of_plan(task_graph, plan, name=path.name, unitless=unitless)
    return Report(f"Plan {path.name}", (view,), unitless=unitless)
