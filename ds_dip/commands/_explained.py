"""How commands show an explanation and what changes would bring."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands._inputs import PLAIN_WIDTH

if TYPE_CHECKING:
    from ds_dip.explaining import Explanation
    from ds_dip.explaining.what_if import Outcome
    from ds_dip.scheduling import Problem
    from ds_dip.scheduling.plan import Plan


def plan_that_holds(path: Path, problem: Path) -> tuple[Problem, Plan]:
    """A problem and a plan of it that can be shown; raises FileError for one that is of another, or does not hold."""
    from ds_dip.files import FileError
    from ds_dip.scheduling import verify
    from ds_dip.scheduling.documents import read_plan, read_problem

    task_graph, digest = read_problem(problem)
    plan = read_plan(path)
    if plan.problem_sha256 != digest:
        raise FileError(f"{path}: is a plan of another problem than {problem}; give the problem that it was made from")
    if plan.status == "infeasible":
        raise FileError(f"{path}: says that no schedule fits ({plan.reason}), so there is none to show")
    if violations := verify(task_graph, plan):
        raise FileError(f"{path}: does not hold ({violations[0]}); see ds-dip check, and make the plan again")
    return task_graph, plan


def show_explanation(
    problem: Problem,
    explanation: Explanation,
    spans: Mapping[int, tuple[float, float]],
    bound: float | None,
    title: str,
    outcomes: Sequence[Outcome] = (),
    *,
    path: bool = False,
    as_json: bool = False,
) -> None:
    """Print all of an explanation: a drawing, sentences, a table of causes, the critical path where it is asked for."""
    from ds_dip.explaining import explanation_document
    from ds_dip.explaining.words import drawing, path_lines, sentences

    if as_json:
        document: dict[str, Any] = explanation_document(problem, explanation, bound)
        if outcomes:
            document["what_if"] = outcomes_document(outcomes)
        click.echo(json.dumps(document))
        return
    click.echo(title)
    for line in (*drawing(problem, explanation, spans), "", *sentences(problem, explanation, bound)):
        click.echo(line)
    click.echo("")
    _console(40).print(_causes(explanation))
    if not explanation.ready_work:
        click.echo(
            "what work was ready is not known of a timeline alone, so waiting for memory is not told apart: record the "
            'run ("dip.record.every")'
        )
    if path:
        click.echo("critical path")
        for line in path_lines(problem, explanation):
            click.echo(f"  {line}")
    if outcomes:
        show_outcomes(outcomes)


def show_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print what every change would bring, the unchanged problem first."""
    from rich.table import Table

    from ds_dip.explaining.words import seconds_of

    base = outcomes[0]
    table = Table("what if", "makespan", "saves", "by seed", "at most", "", title="What changes would bring")
    for own in outcomes:
        if not own.makespans:
            table.add_row(own.name, "-", "-", "-", "-", f"does not fit: {own.reason}")
            continue
        gain, least, most = own.gain(base)
        most_possible = 1 - own.bound / base.makespan if base.makespan else 0.0
        saves = f"{gain:+.1%}" if own.is_known(base) else f"{gain:+.1%}, no more than another seed"
        if own is base:
            saves = "-"
        table.add_row(
            own.name, seconds_of(own.makespan), saves, f"{least:+.1%} to {most:+.1%}", f"{most_possible:+.1%}", own.what
        )
    _console(60).print(table)


def outcomes_document(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """What changes would bring, the unchanged problem first."""
    base = outcomes[0]
    return [
        {
            "name": own.name,
            "what": own.what,
            "makespans": list(own.makespans),
            "lower_bound": own.bound,
            "reason": own.reason,
            "saves": own.gain(base)[0] if own.makespans and base.makespans else None,
            "known": own.is_known(base) if own.makespans and base.makespans else None,
        }
        for own in outcomes
    ]


def _causes(found: Explanation) -> Any:
    from rich.table import Table

    from ds_dip.explaining.words import MARKS, seconds_of

    causes = list(found.totals())
    table = Table("rank", "works", "bubble", *(f"{MARKS[cause]} {cause}" for cause in causes))
    for rank, sums in enumerate(found.sums()):
        share = found.idle(rank) / found.makespan if found.makespan else 0.0
        cells = [seconds_of(sums[cause]) if cause in sums else "-" for cause in causes]
        table.add_row(str(rank), seconds_of(found.work[rank]), f"{share:.1%}", *cells)
    return table


def _console(wider: int = 0) -> Any:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH + wider
    return console
