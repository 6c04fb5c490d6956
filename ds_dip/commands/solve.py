"""``ds-dip solve``: searches a schedule for a problem file and writes a plan."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import click

from ds_dip.commands import MOST_WORKERS, Command, Seconds
from ds_dip.files import FileError, check_writable
from ds_dip.scheduling import Problem, Result, solve
from ds_dip.scheduling.documents import read_plan, read_problem, write_plan
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.search import Stop


@click.command(
    "solve",
    cls=Command,
    examples=[
        "ds-dip solve problem.json --out plan.json",
        "ds-dip solve problem.json --budget 10 --workers 2 --out plan.json",
        (
            "ds-dip solve problem.json --evaluations 100000 --seed 3",
            "--out plan.json    # the same answer every time",
        ),
        "ds-dip solve problem.json --exact --out plan.json    # then prove it",
    ],
)
@click.argument("problem", type=click.Path(path_type=Path))
@click.option("--budget", type=Seconds(), help="Seconds to search (default 1).")
@click.option(
    "--evaluations", type=click.IntRange(1, 10**15), help="Schedules to score; alone, the answer is reproducible."
)
@click.option(
    "--workers", type=click.IntRange(1, MOST_WORKERS), default=1, show_default=True, help="Threads that search."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the search.")
@click.option("--same-order", is_flag=True, help="Run microbatches in one order on all ranks.")
@click.option("--exact", is_flag=True, help="Prove a small problem optimal by CP-SAT (needs ds-dip[exact]).")
@click.option("--warm-start", type=click.Path(path_type=Path), help="A plan of this problem to begin with.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where to write the plan.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan's figures and the baselines as JSON.")
def command(
    problem: Path,
    budget: float | None,
    evaluations: int | None,
    workers: int,
    seed: int,
    same_order: bool,
    exact: bool,
    warm_start: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Search a schedule for PROBLEM and write it as a plan, with a bound on how good it is.

    Ctrl-C ends the search: the best plan so far is written (exit 130); a second one ends it without.
    An infeasible problem gives a plan that says why and what capacity would be enough (exit 1).
    """
    check_writable(out)
    if out.exists() and problem.exists() and out.samefile(problem):
        raise FileError(f"{out}: is the problem itself, which the plan would replace; name another file")
    task_graph, digest = read_problem(problem)
    start = None
    if warm_start is not None:
        plan = read_plan(warm_start)
        if plan.status == "infeasible":
            raise FileError(f"{warm_start}: says that no schedule fits, so there is none to begin with; leave it out")
        start = Schedule(plan.order, plan.choices)
    with _Interrupt() as interrupt, _display() as show:

        def progress(best: float, bound: float, scored: int, seconds: float) -> None:
            if show is not None:
                show(best, bound, scored, seconds)
            if interrupt.came:
                raise Stop

        result = solve(
            task_graph,
            budget=budget,
            evaluations=evaluations,
            seed=seed,
            workers=workers,
            warm_start=start,
            same_order=same_order,
            progress=progress,
        )
        if exact and result.schedule is not None and not interrupt.came:
            result = _prove(task_graph, result, budget if budget is not None else 60.0, workers)
    write_plan(out, result.plan(digest))
    if as_json:
        click.echo(json.dumps(_figures(result, out)))
    else:
        _report(result, out)
    if result.status == "infeasible":
        sys.exit(1)
    if interrupt.came:
        sys.exit(128 + signal.SIGINT)


class _Interrupt:
    """While it is entered the first Ctrl-C is only noted, so that a search can end in its own way."""

    came = False

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, *_: object) -> None:
        self.came = True
        signal.signal(signal.SIGINT, self._before)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)


def _prove(problem: Problem, result: Result, seconds: float, workers: int) -> Result:
    from ds_dip.scheduling.exact import prove

    try:
        return prove(problem, result, seconds, workers)
    except (ValueError, ImportError) as error:
        raise click.UsageError(f"--exact: {error}") from error


def _display() -> Any:
    """A progress line on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        return nullcontext(None)
    from rich.console import Console

    status = Console(stderr=True).status("searching")

    class Display:
        def __enter__(self) -> Any:
            status.start()
            return self.show

        def __exit__(self, *_: object) -> None:
            status.stop()

        def show(self, best: float, bound: float, evaluations: int, seconds: float) -> None:
            gap = 100 * (best / bound - 1) if bound > 0 else 0.0
            rate = evaluations / max(seconds, 1e-9)
            status.update(
                f"makespan {best:g}  bound {bound:g}  gap {gap:.2f} %  {rate:,.0f} evaluations/s  {seconds:.1f} s"
            )

    return Display()


def _figures(result: Result, out: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"status": result.status, "plan": str(out)}
    if result.status == "infeasible":
        return {**found, "reason": result.reason, "sufficient_capacity": list(result.sufficient_capacity or ())}
    return {
        **found, "makespan": result.makespan, "lower_bound": result.lower_bound, "bound": result.bound_name,
        "gap": result.gap, "evaluations": result.evaluations, "seconds": result.seconds,
        "baselines": dict(result.baselines),
    }  # fmt: skip


def _report(result: Result, out: Path) -> None:
    if result.status == "infeasible":
        click.echo(f"infeasible: {result.reason}")
        click.echo(f"sufficient capacity: {list(result.sufficient_capacity or ())}")
        return
    click.echo(
        f"{result.status}: makespan {result.makespan:g}, {100 * result.gap:.3f} % over the bound "
        f"{result.lower_bound:g} ({result.bound_name}); {result.evaluations} evaluations in {result.seconds:.2f} s"
    )
    for name, value in result.baselines.items():
        if isinstance(value, float):
            ahead = 100 * (value / result.makespan - 1) if result.makespan else 0.0
            click.echo(f"  {name}: {value:g} ({ahead:+.1f} %)")
        else:
            click.echo(f"  {name}: {value}")
    click.echo(f"plan written to {out}")
