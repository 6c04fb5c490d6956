"""``ds-dip trace``: writes a step or a plan as a Chrome/Perfetto trace, or a plan's order as torch's schedule CSV."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ds_dip.commands import FILE, Command, is_ours
from ds_dip.commands._progress import waiting


@click.command(
    "trace",
    cls=Command,
    examples=[
        "ds-dip trace runs/quickstart --out trace.json",
        "ds-dip trace runs/quickstart --step 99 --out trace.json",
        "ds-dip trace plan.json --problem problem.json --out trace.json",
        "ds-dip trace plan.json --problem problem.json --format csv --out order.csv",
    ],
)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Of a run: the step to show; the last one with a timeline by default.")
@click.option("--problem", type=FILE, help="Of a plan: the problem that it solves.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["chrome", "csv"]),
    default="chrome",
    show_default=True,
    help="A trace, or a plan's order as schedule CSV of torch.distributed.pipelining.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write it.  [default: trace.json or order.csv]",
)
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was written.")
def command(source: Path, step: int | None, problem: Path | None, kind: str, out: Path | None, as_json: bool) -> None:
    """Write a step of a run, planned and measured on one clock, or a plan, as a Chrome/Perfetto trace.

    SOURCE is a run's folder, with timelines/ or recording/ in it (see "dip.trace" and "dip.record" in the
    configuration), or with --problem a ds-dip/plan. Open the trace in Perfetto or chrome://tracing.
    """
    out = Path("trace.json" if kind == "chrome" else "order.csv") if out is None else out
    if problem is not None:
        if step is not None:
            raise click.UsageError("--step is of a run, and --problem of a plan; leave one of them out")
        _plan(source, problem, kind, out, as_json)
    elif kind == "csv":
        raise click.UsageError("--format csv is of a plan: give its --problem")
    elif source.is_file():
        raise click.UsageError(f"{source} is a file: give the --problem of the plan, or a run's folder")
    else:
        _step(source, step, out, as_json)


def _plan(path: Path, problem: Path, kind: str, out: Path, as_json: bool) -> None:
    from ds_dip.commands._explained import plan_that_holds
    from ds_dip.explaining import Times, explain
    from ds_dip.files import FileError, check_writable, write_atomic
    from ds_dip.reporting.planned import plan_timeline
    from ds_dip.reporting.trace import write_trace
    from ds_dip.scheduling import Schedule
    from ds_dip.scheduling.action_csv import order_text

    task_graph, plan = plan_that_holds(path, problem)
    check_writable(out, (path, problem))
    if is_ours(out):
        raise FileError(f"{out}: is a file of ds_dip's, which would be replaced; name another file")
    if kind == "csv":
        write_atomic(out, order_text(task_graph, Schedule(plan.order, plan.choices)))
        written = {"actions": len(plan.tasks), "ranks": task_graph.ranks, "csv": str(out)}
        click.echo(json.dumps(written) if as_json else f"{len(plan.tasks)} actions on {task_graph.ranks} ranks: {out}")
        return
    timeline = plan_timeline(task_graph, plan)
    start, end = ({own[0]: own[place] for own in plan.tasks} for place in (1, 2))
    found = explain(task_graph, Schedule(plan.order, plan.choices), Times(start, end, plan.makespan))
    write_trace(out, timeline, found.bubbles)
    stages = len(timeline.planned.stages)
    told = {"stages": stages, "ranks": timeline.ranks, "trace": str(out)}
    click.echo(json.dumps(told) if as_json else f"plan, {stages} stages on {timeline.ranks} ranks: {out}")


def _step(run: Path, step: int | None, out: Path, as_json: bool) -> None:
    from ds_dip.files import FileError, check_writable
    from ds_dip.reporting.explained import explained_step
    from ds_dip.reporting.timeline import listed, timeline_of, timelines
    from ds_dip.reporting.trace import write_trace

    found = timelines(run)
    if step is None:
        step = max(found)
    if step not in found:
        raise FileError(f"{run}: has no timeline of step {step}, only of {listed(list(found))}; name one of those")
    check_writable(out)
    if is_ours(out) or out.resolve().parent == found[step].resolve().parent:
        raise FileError(f"{out}: is a place of the run's own files, which a trace would replace; name another file")
    with waiting("writing the trace"):
        timeline = timeline_of(run, step)
        measured = explained_step(run, step).explanation.bubbles if timeline.measured else ()
        write_trace(out, timeline, explained_step(run, step, planned=True).explanation.bubbles, measured)
    if as_json:
        written = {"step": step, "measured": timeline.measured is not None, "ranks": timeline.ranks}
        click.echo(json.dumps({**written, "stages": len(timeline.planned.stages), "trace": str(out)}))
        return
    parts = "planned and measured" if timeline.measured else "planned (it was not measured)"
    click.echo(f"step {step}, {parts}, {len(timeline.planned.stages)} stages on {timeline.ranks} ranks: {out}")
