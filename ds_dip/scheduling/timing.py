"""Schedules and their times: re-timing, memory of an order, and the dual-queue interleaving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ds_dip.scheduling import reference
from ds_dip.scheduling.admission import SLACK, admission
from ds_dip.scheduling.arrays import Arrays, arrays_of
from ds_dip.scheduling.columns import Floats, Ints
from ds_dip.scheduling.graph import compact_of, graph_of
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
    return timeline(arrays, orders, starts(arrays, orders))


def interleave(problem: Problem) -> Schedule:
    """DIP's dual-queue interleaving in first-come order, within memory; it never gets stuck.

    Pairs take the choices of :func:`starting_choices` with which that is shortest, the first of equals; then every pair
    gets the fastest choice for which this order leaves room, where that helps. Raises InfeasibleError, with the
    reason and a sufficient capacity, where no order of a microbatch alone fits.
    """
    from ds_dip.scheduling.strategies import choose

    base = arrays_of(problem)
    best, orders, choices = np.inf, list[list[int]](), (0,) * len(problem.pairs)
    for tried in starting_choices(problem):
        arrays = base.with_choices(tried)
        found = first_come(arrays)
        if (makespan := makespan_of(arrays, found)) < best:
            best, orders, choices = makespan, found, tried
    if any(choices):
        faster = choose(base, orders, 0.0)
        if faster is not None and makespan_of(base.with_choices(faster), orders) < best:
            choices = faster
    return schedule_of(base, orders, choices)


def makespan_of(arrays: Arrays, orders: Orders) -> float:
    """Largest end plus tail of orders by position; raises ScheduleError on a cycle."""
    return float((starts(arrays, orders) + arrays.duration + arrays.tail).max(initial=0.0))


def first_come(arrays: Arrays) -> Orders:
    """Orders of the dual-queue interleaving with first-come priorities."""
    return interleaving(arrays, arrays.priority)


def interleaving(arrays: Arrays, priority: Ints) -> Orders:
    """Orders of the dual-queue interleaving; lower priorities go first. Raises InfeasibleError."""
    from ds_dip.scheduling import queueing

    graph = graph_of(arrays)
    sequence, start = np.empty(arrays.n, dtype=np.int32), np.empty(arrays.n)
    by_priority = np.argsort(priority, kind="stable").astype(np.uint32)
    if queueing.interleave(graph, by_priority, sequence, start, *queueing.scratch(graph)) < 0:
        raise RuntimeError("the interleaving got stuck, which its admission rule excludes; please report this problem")
    return by_rank(arrays, sequence)


def retime_many(problem: Problem, schedule: Schedule, durations: Floats) -> Floats:
    """Makespans (k,) of one schedule under k duration vectors: ``durations`` (tasks, k), rows as in the problem.

    The order stays as it is, so this tells how a plan fares when stages take longer or shorter.
    Raises ScheduleError like :func:`retime`, ValueError for another shape.
    """
    from ds_dip.scheduling import kernels

    arrays = arrays_of(problem).with_choices(schedule.choices)
    if durations.ndim != 2 or len(durations) != arrays.n:
        raise ValueError(f"durations have shape {durations.shape}, expected ({arrays.n}, k)")
    place = {task.id: row for row, task in enumerate(problem.tasks)}
    steps = fixed(arrays, positions(arrays, schedule))
    rows = np.array([place[task] for task in arrays.id[steps.task].tolist()], dtype=np.int64)
    makespan = np.empty(durations.shape[1])
    ordered = np.ascontiguousarray(durations[rows], dtype=np.float64)
    kernels.retime_many(steps.pointer, steps.before, steps.delay, ordered, steps.tail, np.empty_like(ordered), makespan)
    return makespan


class Steps(NamedTuple):
    """A fixed order as steps: ``task`` (n,) in a topological order, and the steps each one waits for."""

    task: Ints
    pointer: NDArray[np.int32]
    before: NDArray[np.int32]
    delay: Floats
    tail: Floats


def fixed(arrays: Arrays, orders: Sequence[Sequence[int]]) -> Steps:
    """Steps of orders by position; raises ScheduleError on a cycle."""
    task = np.array(reference.topological(arrays, orders), dtype=np.int64)
    step = np.empty(arrays.n, dtype=np.int64)
    step[task] = np.arange(arrays.n)
    ahead = np.full(arrays.n, -1, dtype=np.int64)
    for order in orders:
        ahead[order[1:]] = order[:-1]
    waits: list[list[tuple[int, float]]] = []
    for own in task.tolist():
        edges = range(arrays.pred_ptr[own], arrays.pred_ptr[own + 1])
        found = [(int(step[arrays.pred[edge]]), float(arrays.pred_delay[edge])) for edge in edges]
        waits.append(found if ahead[own] < 0 else [(int(step[ahead[own]]), 0.0), *found])
    flattened = [entry for found in waits for entry in found]
    return Steps(
        task,
        np.cumsum([0, *map(len, waits)]).astype(np.int32),
        np.array([entry[0] for entry in flattened], dtype=np.int32),
        np.array([entry[1] for entry in flattened], dtype=np.float64),
        arrays.tail[task],
    )


def starts(arrays: Arrays, orders: Sequence[Sequence[int]]) -> Floats:
    """Earliest starts (n,) of orders by position; raises ScheduleError on a cycle."""
    from ds_dip.scheduling import kernels

    sequence, offset = flat(orders)
    start, end = np.empty(arrays.n), np.empty(arrays.n)
    room = np.empty(arrays.n + 3 * arrays.ranks, dtype=np.int32)
    if kernels.retime(*compact_of(arrays), arrays.tail, sequence, offset, np.inf, start, end, room) < 0:
        reference.retime(arrays, orders)
    return start


def flat(orders: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Orders as one sequence (n,) and the offsets of the ranks in it (ranks + 1,)."""
    offset = np.cumsum([0, *map(len, orders)]).astype(np.int32)
    return np.array([task for order in orders for task in order], dtype=np.int32), offset


def by_rank(arrays: Arrays, sequence: NDArray[np.integer[Any]]) -> Orders:
    """A sequence over all ranks as an order per rank."""
    rank = arrays.rank[sequence]
    return [sequence[rank == own].tolist() for own in range(arrays.ranks)]


def levels(problem: Problem) -> list[tuple[int, ...]]:
    """Choices that all pairs take alike: the first, the leanest, and by memory three from there to the richest."""
    held: dict[str, list[tuple[int, ...]]] = arrays_of(problem).cache
    if "levels" not in held:
        held["levels"] = _levels(problem)
    return held["levels"]


def _levels(problem: Problem) -> list[tuple[int, ...]]:
    ranked = [
        sorted(
            range(len(pair.choices)),
            key=lambda number, pair=pair: (  # type: ignore[misc]
                pair.choices[number].memory,
                pair.choices[number].forward_duration + pair.choices[number].backward_duration,
            ),
        )
        for pair in problem.pairs
    ]
    wanted = [(0,) * len(problem.pairs), leanest(problem)]
    wanted += [tuple(own[(len(own) - 1) * part // 3] for own in ranked) for part in (1, 2, 3)]
    return list(dict.fromkeys(wanted))


def starting_choices(problem: Problem) -> list[tuple[int, ...]]:
    """Choices that fit, to begin with: those of :func:`levels`, and by prices on memory (see ``strategies.priced``).

    Raises InfeasibleError where not even the leanest does.
    """
    from ds_dip.scheduling.strategies import priced

    arrays, found, refusal = arrays_of(problem), list[tuple[int, ...]](), dict[tuple[int, ...], InfeasibleError]()
    if "starts" not in arrays.cache:
        arrays.cache["starts"] = list(dict.fromkeys([*levels(problem), *priced(arrays)]))
    for choices in arrays.cache["starts"]:
        try:
            admission(arrays.with_choices(choices))
            found.append(choices)
        except InfeasibleError as error:
            refusal[choices] = error
    if not found:
        raise refusal[leanest(problem)]
    return found


def fitting(problem: Problem) -> tuple[Arrays, tuple[int, ...]]:
    """The problem with the first of its :func:`starting_choices`, and these; raises InfeasibleError."""
    choices = starting_choices(problem)[0]
    return arrays_of(problem).with_choices(choices), choices


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
