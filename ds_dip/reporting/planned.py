"""A plan of a problem file as a timeline, to be shown like a step of a run."""

from __future__ import annotations

from itertools import pairwise

from ds_dip.reporting.timeline import MemorySample, StageInterval, StepTimeline, Track, TransferInterval
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.plan import Plan
from ds_dip.scheduling.problem import Problem, ScheduleError, Task
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.timing import positions


def plan_timeline(problem: Problem, plan: Plan) -> StepTimeline:
    """The timeline of a plan, as step 0; a problem does not tell the bytes of its messages, which are 0 here.

    Raises ScheduleError where the plan is infeasible, or not one of this problem.
    """
    if plan.status == "infeasible":
        raise ScheduleError(f"the plan says that its problem is infeasible ({plan.reason}); there is nothing to show")
    tasks = {task.id: task for task in problem.tasks}
    start = {task: own for task, own, _ in plan.tasks}
    end = {task: own for task, _, own in plan.tasks}
    arrays = arrays_of(problem).with_choices(plan.choices)
    orders = positions(arrays, Schedule(plan.order, plan.choices))
    if lost := sorted(set(tasks) - set(start)):
        raise ScheduleError(f"task {lost[0]} has no times in the plan; make the plan again")
    stages = tuple(
        StageInterval(t.rank, t.kind, t.module, t.chunk, t.microbatch, t.sub, start[t.id], max(start[t.id], end[t.id]))
        for t in problem.tasks
    )
    crossing = [
        (tasks[before], tasks[after], delay)
        for before, after, delay in problem.edges
        if tasks[before].rank != tasks[after].rank
    ]
    crossing.sort(key=lambda own: (own[0].rank, own[1].rank, end[own[0].id], own[0].id, own[1].id))
    number: dict[tuple[int, int], int] = {}
    transfers = []
    for before, after, delay in crossing:
        link = before.rank, after.rank
        number[link] = number.get(link, -1) + 1
        sent = end[before.id]
        transfers.append(
            TransferInterval(*link, number[link], sent, sent + delay, 0, identity(before), identity(after))
        )
    memory = []
    for rank, order in enumerate(orders):
        held = 0.0
        for task in order:
            held += float(arrays.acquire[task])
            memory.append(MemorySample(rank, start[int(arrays.id[task])], held))
            held -= float(arrays.release[task])
            memory.append(MemorySample(rank, end[int(arrays.id[task])], max(0.0, held)))
    merged = [one for one, other in pairwise(memory) if (one.rank, one.at_s) != (other.rank, other.at_s)]
    track = Track(stages, tuple(transfers), (*merged, *memory[-1:]))
    return StepTimeline(0, problem.ranks, "planned", "", plan.status, track)


def identity(task: Task) -> tuple[str, str, int, int, int]:
    """What a stage is called in a timeline."""
    return task.kind, task.module, task.chunk, task.microbatch, task.sub
