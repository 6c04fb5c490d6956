"""Schedules and their times: re-timing, memory of an order, and the dual-queue interleaving."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds_dip.scheduling import reference
from ds_dip.scheduling.admission import SLACK, admission
from ds_dip.scheduling.arrays import Arrays, Floats, arrays_of
from ds_dip.scheduling.problem import InfeasibleError, Problem, ScheduleError
from ds_dip.scheduling.schedule import Schedule, Timeline

Orders = list[list[int]]
"""Positions of tasks (not ids) per rank, in running order."""


def retime(problem: Problem, schedule: Schedule) -> Timeline:
    """Earliest times when every rank runs its tasks in the schedule's order.

    Memory is reported, not limited. Raises ScheduleError where tasks are missing, on another rank
    or in an order that contradicts the edges.
    """
    arrays = arrays_of(problem).with_choices(schedule.choices)
    orders = positions(arrays, schedule)
    start = np.array(reference.retime(arrays, orders))
    return timeline(arrays, orders, start)


def interleave(problem: Problem) -> Schedule:
    """DIP's dual-queue interleaving in first-come order, within memory; it never gets stuck.

    Pairs take their first choice where that fits, else their leanest. Raises InfeasibleError, with
    the reason and a sufficient capacity, where no order of a microbatch alone fits.
    """
    arrays, choices = fitting(problem)
    return schedule_of(arrays, first_come(arrays), choices)


def first_come(arrays: Arrays) -> Orders:
    """Orders of the dual-queue interleaving with first-come priorities."""
    return reference.interleave(arrays, admission(arrays), arrays.priority.tolist())


def fitting(problem: Problem) -> tuple[Arrays, tuple[int, ...]]:
    """The problem with first choices where they fit, else leanest; raises InfeasibleError."""
    base = arrays_of(problem)
    choices = (0,) * len(problem.pairs)
    arrays = base.with_choices(choices)
    try:
        admission(arrays)
    except InfeasibleError:
        lean = leanest(problem)
        if lean == choices:
            raise
        choices, arrays = lean, base.with_choices(lean)
        admission(arrays)
    return arrays, choices


def leanest(problem: Problem) -> tuple[int, ...]:
    """The choice of every pair that keeps least memory, the fastest of equals."""
    return tuple(
        min(
            range(len(pair.choices)),
            key=lambda number, pair=pair: (  # type: ignore[misc]
                pair.choices[number].memory,
                pair.choices[number].backward_acquire,
                pair.choices[number].forward_duration + pair.choices[number].backward_duration,
            ),
        )
        for pair in problem.pairs
    )


def positions(arrays: Arrays, schedule: Schedule) -> Orders:
    """The schedule's ids as positions; raises ScheduleError where it does not fit the problem."""
    if len(schedule.order) != arrays.ranks:
        raise ScheduleError(
            f"the schedule has {len(schedule.order)} ranks, the problem {arrays.ranks}; make them agree"
        )
    seen = [False] * arrays.n
    orders: Orders = []
    for rank, ids in enumerate(schedule.order):
        try:
            order = [arrays.index[task] for task in ids]
        except KeyError as missing:
            raise ScheduleError(f"rank {rank} runs task {missing}, which the problem does not have") from missing
        for task in order:
            if arrays.rank[task] != rank:
                raise ScheduleError(f"task {arrays.id[task]} runs on rank {rank}, but lives on {arrays.rank[task]}")
            if seen[task]:
                raise ScheduleError(f"task {arrays.id[task]} runs twice; run every task once")
            seen[task] = True
        orders.append(order)
    if not all(seen):
        raise ScheduleError(f"task {arrays.id[seen.index(False)]} is never run; run every task once")
    return orders


def schedule_of(arrays: Arrays, orders: Sequence[Sequence[int]], choices: tuple[int, ...] = ()) -> Schedule:
    """Positions per rank as a schedule of ids."""
    ids = arrays.id.tolist()
    return Schedule(tuple(tuple(ids[task] for task in order) for order in orders), choices)


def peaks(arrays: Arrays, orders: Sequence[Sequence[int]]) -> tuple[float, ...]:
    """Peak memory per rank. It depends on a rank's order alone, as its tasks never overlap."""
    found = []
    for order in orders:
        own = np.asarray(order, dtype=np.int64)
        held = np.cumsum(arrays.acquire[own] - arrays.release[own])
        found.append(float((held + arrays.release[own]).max()) if len(own) else 0.0)
    return tuple(found)


def fits(arrays: Arrays, orders: Sequence[Sequence[int]]) -> bool:
    """Whether no rank exceeds its capacity."""
    return bool((np.array(peaks(arrays, orders)) <= arrays.capacity * (1 + SLACK)).all())


def timeline(arrays: Arrays, orders: Sequence[Sequence[int]], start: Floats) -> Timeline:
    """Start times (n,) as a Timeline by task id."""
    end = start + arrays.duration
    ids = arrays.id.tolist()
    makespan = float((end + arrays.tail).max()) if arrays.n else 0.0
    return Timeline(
        dict(zip(ids, start.tolist(), strict=True)),
        dict(zip(ids, end.tolist(), strict=True)),
        peaks(arrays, orders),
        makespan,
    )
