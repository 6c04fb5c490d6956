"""The view of a plan: its problem's stages at the plan's times, with the memory that they hold."""

from __future__ import annotations

from dataclasses import replace

from ds_dip.explaining import Times, explain, explanation_document
from ds_dip.files import FileError
from ds_dip.reporting.viewer.document import Arrow, Bar, Interval, View, bubble, course, explained
from ds_dip.reporting.viewer.quantities import seconds, share, size
from ds_dip.scheduling import Plan, Problem, Schedule, verify
from ds_dip.scheduling.arrays import Arrays, arrays_of
from ds_dip.scheduling.timing import Orders, positions


def view_of_plan(problem: Problem, plan: Plan, *, name: str = "plan", unitless: bool = False) -> View:
    """A plan of a problem as a view, with what explains it; of a plan that does not hold it says so instead.

    Raises FileError where the plan is infeasible or its tasks are not the problem's, ScheduleError where its order is
    none of the problem.
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
    schedule = Schedule(plan.order, plan.choices)
    arrays = arrays_of(problem).with_choices(plan.choices)
    orders = positions(arrays, schedule)
    bars = tuple(
        Bar(task.rank, task.kind, task.module, task.chunk, task.microbatch, task.sub, task.id) for task in problem.tasks
    )
    times = tuple(at[task.id] for task in problem.tasks)
    index = {task.id: stage for stage, task in enumerate(problem.tasks)}
    needs = [(index[before], index[after], delay) for before, after, delay in problem.edges]
    order = [index[task] for rank in plan.order for task in rank]
    view = View(
        name=name,
        ranks=problem.ranks,
        facts=_facts(problem, plan, bubble(problem.ranks, times), unitless),
        bars=bars,
        courses=(course("planned", bars, times, needs, order),),
        arrows=tuple(Arrow(a, b) for a, b, _ in needs if bars[a].rank != bars[b].rank),
        memory=_memory(arrays, orders, at),
        capacity=problem.memory_capacity,
    )
    if violations := verify(problem, plan):
        return replace(view, warning=f"This plan does not hold, see ds-dip check: {violations[0]}.")
    spans = Times({t: own[0] for t, own in at.items()}, {t: own[1] for t, own in at.items()}, plan.makespan)
    found = explanation_document(problem, explain(problem, schedule, spans), plan.lower_bound)
    return explained(view, found)


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


def _memory(arrays: Arrays, orders: Orders, at: dict[int, Interval]) -> tuple[tuple[Interval, ...], ...]:
    """Per rank, what is held from each moment on; a rank runs its tasks one after another."""
    if not arrays.acquire.any():
        return ()
    ids, acquire, release = arrays.id.tolist(), arrays.acquire.tolist(), arrays.release.tolist()
    rows = []
    for order in orders:
        held, row = 0.0, list[Interval]()
        for task in order:
            start, end = at[ids[task]]
            for time, change in ((start, acquire[task]), (end, -release[task])):
                if change:
                    held += change
                    row.append((time, max(0.0, held)))
        rows.append(tuple(row))
    return tuple(rows)
