"""The view of a plan: its problem's stages at the plan's times, with the memory that they hold."""

from __future__ import annotations

from ds_dip.files import FileError
from ds_dip.reporting.viewer.document import Arrow, Bar, Interval, View, bubble, course
from ds_dip.reporting.viewer.quantities import seconds, share, size
from ds_dip.scheduling import Plan, Problem
from ds_dip.scheduling.arrays import Arrays, arrays_of


def view_of_plan(problem: Problem, plan: Plan, *, name: str = "plan", unitless: bool = False) -> View:
    """A plan of a problem as a view.

    Raises FileError where the plan is infeasible or its tasks are not the problem's.
    """
    if plan.status == "infeasible":
        raise FileError(f"{name}: is infeasible, so there is no timeline to show ({plan.reason})")
    at = {task: (start, end) for task, start, end in plan.tasks}
    wanted = {task.id for task in problem.tasks}
    if len(at) != len(plan.tasks) or at.keys() != wanted:
        odd = min(at.keys() ^ wanted, default=-1)
        raise FileError(
            f"{name}: does not have every task of the problem once (see task {odd}); give the problem that it is for"
        )
    bars = tuple(
        Bar(task.rank, task.kind, task.module, task.chunk, task.microbatch, task.sub, task.id) for task in problem.tasks
    )
    times = tuple(at[task.id] for task in problem.tasks)
    index = {task.id: stage for stage, task in enumerate(problem.tasks)}
    order = [index[task] for rank in plan.order for task in rank if task in index]
    needs = [(index[before], index[after], delay) for before, after, delay in problem.edges]
    return View(
        name=name,
        ranks=problem.ranks,
        facts=_facts(problem, plan, bubble(problem.ranks, times), unitless),
        bars=bars,
        courses=(course("planned", bars, times, needs, order),),
        arrows=tuple(Arrow(a, b) for a, b, _ in needs if bars[a].rank != bars[b].rank),
        memory=_memory(arrays_of(problem).with_choices(plan.choices), at),
        capacity=problem.memory_capacity,
    )


def _facts(problem: Problem, plan: Plan, idle: float, unitless: bool) -> tuple[tuple[str, str], ...]:
    microbatches = {task.microbatch for task in problem.tasks}
    facts = [
        ("makespan", seconds(plan.makespan, unitless)),
        ("lower bound", seconds(plan.lower_bound, unitless)),
        ("gap", f"{share(plan.gap)} ({plan.status})"),
        ("bubble", share(idle)),
        ("size", size(problem.ranks, len(microbatches), len(problem.tasks))),
        ("search", f"{plan.evaluations:,} schedule{'s' * (plan.evaluations != 1)} in {seconds(plan.seconds)}"),
    ]
    return tuple(facts)


def _memory(arrays: Arrays, at: dict[int, Interval]) -> tuple[tuple[Interval, ...], ...]:
    """Per rank, what is held from each moment on; at equal times what is given back goes first (docs of problems)."""
    if not arrays.acquire.any():
        return ()
    changes: list[list[tuple[float, bool, float]]] = [[] for _ in range(arrays.ranks)]
    columns = (arrays.id.tolist(), arrays.rank.tolist(), arrays.acquire.tolist(), arrays.release.tolist())
    for task, rank, acquire, release in zip(*columns, strict=True):
        start, end = at[task]
        # What a task without duration gives back was not there before it.
        changes[rank] += [(start, True, acquire), (end, end == start, -release)]
    rows = []
    for own in changes:
        own.sort(key=lambda change: change[:2])
        held, row = 0.0, list[Interval]()
        for time, _, change in own:
            if change:
                held += change
                row.append((time, max(0.0, held)))
        rows.append(tuple(row))
    return tuple(rows)
