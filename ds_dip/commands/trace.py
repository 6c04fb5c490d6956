"""``ds-dip trace``: writes a step or a plan as a Chrome/Perfetto trace, or a plan's order as torch's schedule CSV."""

from __future__ import annotations

from pathlib import Path

import click

from ds_dip.commands import FILE


@click.command("trace")
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
def command(source: Path, step: int | None, problem: Path | None, kind: str, out: Path | None) -> None:
    """Write a step of a run, planned and measured on one clock, or a plan, as a Chrome/Perfetto trace.

    SOURCE is a run's folder, with timelines/ or recording/ in it (see "dip.trace" and "dip.record" in the
    configuration), or with --problem a ds-dip/plan. Open the trace in Perfetto or chrome://tracing.
    """
    out = Path("trace.json" if kind == "chrome" else "order.csv") if out is None else out
    if problem is not None:
        if step is not None:
            raise click.UsageError("--step is of a run, and --problem of a plan; leave one of them out")
        _plan(source, problem, kind, out)
    elif kind == "csv":
        raise click.UsageError("--format csv is of a plan: give its --problem")
    else:
        _step(source, step, out)


def _plan(path: Path, problem: Path, kind: str, out: Path) -> None:
    from ds_dip.explaining import Times, explain
    from ds_dip.files import FileError, check_writable, write_atomic
    from ds_dip.reporting.planned import plan_timeline
    from ds_dip.reporting.trace import write_trace
    from ds_dip.scheduling import Schedule
    from ds_dip.scheduling.action_csv import order_text
    from ds_dip.scheduling.documents import read_plan, read_problem

    task_graph, digest = read_problem(problem)
    plan = read_plan(path)
    if plan.problem_sha256 != digest:
        raise FileError(f"{path}: is a plan of another problem than {problem}; give the problem that it was made from")
    check_writable(out)
    if _is_ours(out):
        raise FileError(f"{out}: is a file of ds_dip's, which would be replaced; name another file")
    if kind == "csv":
        write_atomic(out, order_text(task_graph, Schedule(plan.order, plan.choices)))
        click.echo(f"{len(plan.tasks)} actions on {task_graph.ranks} ranks: {out}")
        return
    timeline = plan_timeline(task_graph, plan)
    start, end = ({own[0]: own[place] for own in plan.tasks} for place in (1, 2))
    found = explain(task_graph, Schedule(plan.order, plan.choices), Times(start, end, plan.makespan))
    write_trace(out, timeline, found.bubbles)
    click.echo(f"plan, {len(timeline.planned.stages)} stages on {timeline.ranks} ranks: {out}")


def _step(run: Path, step: int | None, out: Path) -> None:
    from ds_dip.files import FileError, check_writable
    from ds_dip.reporting.explained import explained_step
    from ds_dip.reporting.timeline import timeline_of, timelines
    from ds_dip.reporting.trace import write_trace

    found = timelines(run)
    if step is None:
        step = max(found)
    if step not in found:
        raise FileError(f"{run}: has no timeline of step {step}, only of {_ranges(list(found))}; name one of those")
    check_writable(out)
    if _is_ours(out) or out.resolve().parent == found[step].resolve().parent:
        raise FileError(f"{out}: is a place of the run's own files, which a trace would replace; name another file")
    timeline = timeline_of(run, step)
    measured = explained_step(run, step).explanation.bubbles if timeline.measured else ()
    write_trace(out, timeline, explained_step(run, step, planned=True).explanation.bubbles, measured)
    parts = "planned and measured" if timeline.measured else "planned (it was not measured)"
    click.echo(f"step {step}, {parts}, {len(timeline.planned.stages)} stages on {timeline.ranks} ranks: {out}")


def _is_ours(path: Path) -> bool:
    """Whether a file is a document that ds_dip reads: they all begin with their format."""
    if not path.exists():
        return False
    with path.open("rb") as stream:
        return stream.read(64).startswith(b'{"format": "ds-dip/')


def _ranges(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 8 else f"{steps[0]} to {steps[-1]} ({len(steps)} of them)"
