"""``ds-dip check``: re-checks a plan from its problem alone."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ds_dip.scheduling import verify
from ds_dip.scheduling.documents import read_plan, read_problem

SHOWN = 10


@click.command("check")
@click.argument("problem", type=click.Path(path_type=Path))
@click.argument("plan", type=click.Path(path_type=Path))
def command(problem: Path, plan: Path) -> None:
    """Re-check PLAN against PROBLEM, independently of the solver.

    Exits with 1 and shows the first violations where the plan does not hold.
    """
    task_graph, digest = read_problem(problem)
    answer = read_plan(plan)
    violations = verify(task_graph, answer)
    if answer.problem_sha256 != digest:
        violations.insert(0, f"the plan is for problem {answer.problem_sha256[:12]}…, this file is {digest[:12]}…")
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
