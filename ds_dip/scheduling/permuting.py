"""Search over priorities of bundles (kind, module, microbatch), decoded by the dual queue; compiled.

Every decoded order is a schedule within memory. Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ds_dip.scheduling.columns import Floats
from ds_dip.scheduling.graph import Graph, Ints32, Units
from ds_dip.scheduling.moves import draw
from ds_dip.scheduling.queueing import Words, interleave


@njit(cache=True, nogil=True, boundscheck=False)
def spread(bundles: Ints32, tasks_ptr: Ints32, tasks: Ints32, by_priority: Units) -> None:
    """Write the tasks of bundles, in their order, as priorities."""
    index = 0
    for bundle in bundles:
        for place in range(tasks_ptr[bundle], tasks_ptr[bundle + 1]):
            by_priority[index] = tasks[place]
            index += 1


@njit(cache=True, nogil=True, boundscheck=False)
def insert(bundles: Ints32, source: int, target: int) -> None:
    """Move the bundle at place ``source`` to place ``target``."""
    moved = bundles[source]
    step = 1 if target > source else -1
    for place in range(source, target, step):
        bundles[place] = bundles[place + step]
    bundles[target] = moved


@njit(cache=True, nogil=True, boundscheck=False)
def gather(bundles: Ints32, owner: Ints32, one: int, other: int, trial: Ints32) -> None:
    """Write into ``trial`` the order with all of owner ``one`` right before the first of ``other``."""
    index = 0
    placed = False
    for bundle in bundles:
        if owner[bundle] == one:
            continue
        if not placed and owner[bundle] == other:
            placed = True
            for moved in bundles:
                if owner[moved] == one:
                    trial[index] = moved
                    index += 1
        trial[index] = bundle
        index += 1


@njit(cache=True, nogil=True, boundscheck=False)
def keep_order(g: Graph, table: Ints32, order: Ints32, waiting: Units) -> None:
    """Chain the tasks ``table[role, microbatch]`` of every role in the order of microbatches."""
    g.waiting[:] = waiting
    g.chained[:] = g.rank.shape[0]
    for role in range(table.shape[0]):
        before = -1
        for microbatch in order:
            task = table[role, microbatch]
            if task >= 0:
                if before >= 0:
                    g.chained[before] = task
                    g.waiting[task] += 1
                before = task


@njit(cache=True, nogil=True, boundscheck=False)
def permute(
    g: Graph,
    tasks_ptr: Ints32,
    tasks: Ints32,
    owner: Ints32,
    owners: int,
    table: Ints32,
    bundles: Ints32,
    best: Ints32,
    sequence: Ints32,
    evaluations: int,
    hot: float,
    cold: float,
    bound: float,
    state: Words,
    ints: Units,
    floats: Floats,
    bits: Words,
) -> tuple[float, int]:
    """Anneal the order ``bundles`` in place, from temperature ``hot`` to ``cold`` (in time units).

    Bundle b has ``tasks[tasks_ptr[b]:tasks_ptr[b+1]]`` and belongs to microbatch ``owner[b]`` of
    ``owners``. With roles in ``table`` (roles, bundles) every rank follows the one order in each of
    them; ``g.chained`` and ``g.waiting`` are then overwritten. ``best`` receives the best order,
    ``sequence`` its tasks as they start. Returns the best makespan and the evaluations used, fewer
    where ``bound`` was reached.
    """
    n, many = g.rank.shape[0], bundles.shape[0]
    by_priority, started = np.empty(n, np.uint32), np.empty(n, np.int32)
    start = np.empty(n)
    trial = np.empty(many, np.int32)
    waiting = g.waiting.copy()
    same = table.shape[0] > 0
    record = np.inf
    current = np.inf
    cooling = (cold / hot) ** (1.0 / max(1, evaluations))
    heat = hot
    for used in range(evaluations):
        trial[:] = bundles
        if used:
            kind = draw(state, 4)
            if owners > 1 and kind < 2:
                # A microbatch moves before another one: any, or one nearby.
                place = draw(state, many)
                one = owner[bundles[place]]
                nearby = place - 12 + draw(state, 25)
                other: Any = np.int64(owner[bundles[min(many - 1, max(0, nearby))]])
                if kind == 0 or one == other:
                    other = draw(state, owners)
                if one != other:
                    gather(bundles, owner, one, other, trial)
            else:
                source = draw(state, many)
                reach = many if same else max(2, many // 4)
                target = source - reach + draw(state, 2 * reach + 1)
                insert(trial, source, min(many - 1, max(0, target)))
        spread(trial, tasks_ptr, tasks, by_priority)
        if same:
            keep_order(g, table, trial, waiting)
        result = interleave(g, by_priority, started, start, ints, floats, bits)
        heat *= cooling
        chance = (draw(state, 1 << 30) + 1) / (1 << 30)
        if 0.0 <= result <= current - heat * np.log(chance):
            current = result
            bundles[:] = trial
            if result < record:
                record = result
                best[:] = trial
                sequence[:] = started
                if record <= bound:
                    return record, used + 1
    return record, evaluations


@njit(cache=True, nogil=True, boundscheck=False)
def roll_out(
    g: Graph,
    tasks_ptr: Ints32,
    tasks: Ints32,
    bundles: Ints32,
    fixed: int,
    count: int,
    best: Ints32,
    sequence: Ints32,
    state: Words,
    ints: Units,
    floats: Floats,
    bits: Words,
) -> float:
    """The best makespan of ``count`` random orders that begin with ``bundles[:fixed]``.

    ``bundles`` is shuffled behind ``fixed``; ``best`` and ``sequence`` receive the best order and
    its tasks as they start. With everything fixed the one order is scored.
    """
    n, many = g.rank.shape[0], bundles.shape[0]
    by_priority, started = np.empty(n, np.uint32), np.empty(n, np.int32)
    start = np.empty(n)
    record = np.inf
    for _ in range(count):
        for place in range(fixed, many - 1):
            other = place + draw(state, many - place)
            bundles[place], bundles[other] = bundles[other], bundles[place]
        spread(bundles, tasks_ptr, tasks, by_priority)
        result = interleave(g, by_priority, started, start, ints, floats, bits)
        if 0.0 <= result < record:
            record = result
            best[:] = bundles
            sequence[:] = started
    return record
