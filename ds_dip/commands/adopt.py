"""``ds-dip adopt``: times an order from torch's schedule CSV for a problem and writes it as a plan."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ds_dip.commands import FILE, Command


@click.command(
    "adopt",
    cls=Command,
    examples=["ds-dip adopt order.csv --problem problem.json --out plan.json"],
)
@click.argument("order", type=click.Path(path_type=Path))
@click.option("--problem", type=FILE, required=True, help="The problem that the order is of.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where to write the plan.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan's figures as JSON.")
def command(order: Path, problem: Path, out: Path, as_json: bool) -> None:
    """Take the order in ORDER, a schedule CSV of torch.distributed.pipelining, for a problem, and write it as a plan.

    Stages are counted along the problem's chain of chunks, microbatches from 0. The plan can be checked, explained,
    traced, and searched on (solve --warm-start) like any other.
    """
    from ds_dip.files import FileError, check_writable
    from ds_dip.scheduling import InfeasibleError, ScheduleError, lower_bound, retime
    from ds_dip.scheduling.action_csv import read_order
    from ds_dip.scheduling.documents import read_problem, write_plan
    from ds_dip.scheduling.plan import Plan
    from ds_dip.scheduling.result import gap_of

    check_writable(out, (order, problem))
    task_graph, digest = read_problem(problem)
    schedule = read_order(order, task_graph)
    try:
        times, bound = retime(task_graph, schedule), lower_bound(task_graph)[0]
    except (ScheduleError, InfeasibleError) as error:
        raise FileError(f"{order}: {error}; give an order that follows the problem's edges") from error
    gap, status = gap_of(times.makespan, bound)
    tasks = tuple((task, start, times.end[task]) for task, start in times.start.items())
    plan = Plan(digest, status, times.makespan, bound, gap, 1, 0.0, 0, tasks, schedule.order, schedule.choices)
    write_plan(out, plan)
    if as_json:
        figures = {"makespan": times.makespan, "lower_bound": bound, "gap": gap, "status": status}
        click.echo(json.dumps({**figures, "plan": str(out)}))
        return
    click.echo(f"makespan {times.makespan:g}, {100 * gap:.3f} % over the bound {bound:g}; plan written to {out}")
