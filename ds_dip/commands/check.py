"""``ds-dip check``: re-checks a plan from its problem alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ds_dip.commands import Command
from ds_dip.commands._progress import waiting
from ds_dip.scheduling import verify
from ds_dip.scheduling.documents import read_plan, read_problem

SHOWN = 10


@click.command(
    "check", cls=Command, examples=["ds-dip check problem.json plan.json", "ds-dip check problem.json plan.json --json"]
)
@click.argument("problem", type=click.Path(path_type=Path))
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, all violations among them.")
def command(problem: Path, plan: Path, as_json: bool) -> None:
    """Re-check PLAN against PROBLEM, independently of the solver.

    Exits with 1 and shows the first violations where the plan does not hold.
    """
    with waiting("checking"):
        task_graph, digest = read_problem(problem)
        answer = read_plan(plan)
        violations = verify(task_graph, answer)
    if answer.problem_sha256 != digest:
        violations.insert(0, f"the plan is for problem {answer.problem_sha256[:12]}…, this file is {digest[:12]}…")
    if as_json:
        found = {"holds": not violations, "violations": [str(own) for own in violations], "status": answer.status}
        figures = {"tasks": len(answer.tasks), "makespan": answer.makespan, "lower_bound": answer.lower_bound}
        click.echo(json.dumps({**found, **figures, "gap": answer.gap}))
        sys.exit(1 if violations else 0)
    if violations:
        for violation in violations[:SHOWN]:
            click.echo(violation)
        if len(violations) > SHOWN:
            click.echo(f"… and {len(violations) - SHOWN} more")
        sys.exit(1)
    if answer.status == "infeasible":
        click.echo(f"infeasible, as the plan says: {answer.reason}")
    else:
        click.echo(
            f"holds: {len(answer.tasks)} tasks, makespan {answer.makespan:g}, "
            f"{100 * answer.gap:.3f} % over the bound {answer.lower_bound:g}"
        )
