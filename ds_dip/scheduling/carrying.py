"""The order of one batch as a start for the next."""

from __future__ import annotations

import numpy as np

from ds_dip.scheduling.arrays import Arrays, arrays_of
from ds_dip.scheduling.problem import Problem, ScheduleError
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.timing import (
    Orders,
    by_rank,
    fits,
    interleaving,
    makespan_of,
    retime,
    schedule_of,
    starting_choices,
    starts,
)


def carry_over(previous: Problem, schedule: Schedule, problem: Problem) -> Schedule:
    """A schedule of ``problem`` that follows the order of an earlier one, for ``solve(warm_start=…)``.

    The heaviest microbatch takes the turns of the earlier one's heaviest, and so on. Tasks of the same
    identity (kind, module, chunk, microbatch, sub) keep their turn, new ones come with the next task of
    their microbatch that was there. Where that is no schedule within memory, the turns are priorities
    of the dual queue. Pairs take the choices of ``starting_choices`` with which that is shortest.
    Raises InfeasibleError where nothing fits.
    """
    start = retime(previous, schedule).start
    twin = dict(zip(heaviest_first(previous), heaviest_first(problem), strict=False))
    turn = {
        (task.kind, task.module, task.chunk, twin[task.microbatch], task.sub): start[task.id]
        for task in previous.tasks
        if task.microbatch in twin
    }
    arrays = arrays_of(problem)
    tasks = {task.id: task for task in problem.tasks}
    begin = np.full(arrays.n, np.nan)
    for place, number in enumerate(arrays.id.tolist()):
        task = tasks[number]
        begin[place] = turn.get((task.kind, task.module, task.chunk, task.microbatch, task.sub), np.nan)
    order = np.lexsort([arrays.priority, arrays.microbatch])
    latest = np.inf
    for place in order[::-1].tolist():
        if not np.isnan(begin[place]):
            latest = float(begin[place])
        else:
            begin[place] = latest
    orders = by_rank(arrays, np.lexsort([arrays.priority, arrays.depth, begin]))
    priority = np.empty(arrays.n, dtype=np.int64)
    priority[np.lexsort([arrays.priority, begin])] = np.arange(arrays.n)
    found = []
    for choices in starting_choices(problem):
        own = arrays.with_choices(choices)
        kept = orders if _runs(own, orders) else interleaving(own, priority)
        found.append((makespan_of(own, kept), choices, kept))
    _, choices, orders = min(found, key=lambda entry: entry[0])
    return schedule_of(arrays, orders, choices)


def _runs(arrays: Arrays, orders: Orders) -> bool:
    """Whether orders are a schedule within memory."""
    try:
        starts(arrays, orders)
    except ScheduleError:
        return False
    return fits(arrays, orders)


def heaviest_first(problem: Problem) -> list[int]:
    """The microbatches by the sum of their durations, the largest first; of equals the first one first."""
    work: dict[int, float] = {}
    for task in problem.tasks:
        work[task.microbatch] = work.get(task.microbatch, 0.0) + task.duration
    return sorted(work, key=lambda microbatch: (-work[microbatch], microbatch))
