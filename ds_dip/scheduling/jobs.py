"""Pieces of a search that run in a worker thread: one annealing of orders or of priorities each.

They take and give sequences: the tasks of rank 0 in order, then those of rank 1, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.columns import Ints
from ds_dip.scheduling.graph import Ints32, compact_of, graph_of
from ds_dip.scheduling.mirror import mirrored
from ds_dip.scheduling.problem import InfeasibleError
from ds_dip.scheduling.space import Space, space_of
from ds_dip.scheduling.strategies import choose
from ds_dip.scheduling.timing import by_rank, flat
from ds_dip.scheduling.window import window

FIRST_JOB, LONGEST_JOB = 0.06, 1.0
"""Seconds that jobs take, about: they grow from the first to the longest."""
REORDER_COST, DECODE_COST = 12e-9, 150e-9
"""Seconds a task, about: they size jobs, and being constants they keep searches reproducible."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a job found: makespan (infinite for nothing), sequence and choices, evaluations.

    ``bundles`` is a priority order that was annealed, ``places`` those of the sequence that may have changed.
    """

    makespan: float
    sequence: Ints32
    choices: tuple[int, ...]
    evaluations: int
    bundles: Ints32 | None = None
    places: Ints | None = None


@dataclass(frozen=True, slots=True)
class Bundles:
    """What may be reordered: tasks by bundle as compressed rows, and each bundle's microbatch."""

    pointer: Ints32
    tasks: Ints32
    owner: Ints32
    owners: int
    first_come: Ints32


def bundles_of(arrays: Arrays) -> Bundles:
    """Bundles (kind, module, microbatch), numbered alike in a problem and its mirror."""
    if "bundles" not in arrays.cache:
        many = int(arrays.bundle.max()) + 1 if arrays.n else 0
        first = np.full(many, arrays.n, dtype=np.int64)
        np.minimum.at(first, arrays.bundle, arrays.priority)
        tasks = np.lexsort([arrays.priority, arrays.bundle])
        owner = np.zeros(many, dtype=np.int32)
        values, column = np.unique(arrays.microbatch, return_inverse=True)
        owner[arrays.bundle] = column.reshape(-1)
        arrays.cache["bundles"] = Bundles(
            np.searchsorted(arrays.bundle[tasks], np.arange(many + 1)).astype(np.int32),
            tasks.astype(np.int32),
            owner,
            len(values),
            np.argsort(first).astype(np.int32),
        )
    return arrays.cache["bundles"]  # type: ignore[no-any-return]


def seed_orders(arrays: Arrays, backwards: bool) -> list[Ints32]:
    """Orders of bundles to begin with: first come, and microbatches by their work.

    The shortest first, the longest first, and long and short in turn: in tight memory what runs
    side by side must fit together.
    """
    held = bundles_of(mirrored(arrays) if backwards else arrays)
    column = np.unique(arrays.microbatch, return_inverse=True)[1].reshape(-1)
    work = np.bincount(column, arrays.duration, minlength=held.owners)
    rising = np.argsort(work, kind="stable")
    turns = np.empty_like(rising)
    turns[0::2], turns[1::2] = rising[::-1][: len(turns[0::2])], rising[: len(turns[1::2])]
    orders = [held.first_come]
    for wanted in (rising, rising[::-1], turns):
        place = np.empty(held.owners, dtype=np.int64)
        place[wanted] = np.arange(held.owners)
        orders.append(held.first_come[np.argsort(place[held.owner[held.first_come]], kind="stable")])
    return orders


def seeded(seed: int) -> NDArray[np.uint64]:
    """A generator's state from a seed, never zero."""
    return np.array([(seed * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64 | 1], dtype=np.uint64)


def evaluate(arrays: Arrays, sequence: Ints32) -> float:
    """Makespan of a sequence; infinite where it is a cycle."""
    from ds_dip.scheduling import kernels

    offset = np.concatenate([[0], np.cumsum(np.bincount(arrays.rank, minlength=arrays.ranks))]).astype(np.int32)
    start, end = np.empty(arrays.n), np.empty(arrays.n)
    room = np.empty(arrays.n + 3 * arrays.ranks, dtype=np.int32)
    makespan = kernels.retime(*compact_of(arrays), arrays.tail, sequence, offset, np.inf, start, end, room)
    return float(makespan) if makespan >= 0 else np.inf


def reorder(
    arrays: Arrays,
    sequence: Ints32,
    choices: tuple[int, ...],
    evaluations: int,
    hot: float,
    cold: float,
    bound: float,
    swaps: int,
    seed: int,
) -> Found:
    """Anneal per-rank orders, and the choices of pairs with them; temperatures in time units."""
    chosen, makespan, best, used = _anneal(
        space_of(arrays), sequence, choices, evaluations, hot, cold, bound, swaps, seed
    )
    return Found(makespan, best, chosen, used)


def rewind(
    arrays: Arrays,
    sequence: Ints32,
    choices: tuple[int, ...],
    first: int,
    tasks: int,
    evaluations: int,
    hot: float,
    cold: float,
    bound: float,
    swaps: int,
    seed: int,
) -> Found:
    """Anneal the window of ``tasks`` tasks from the ``first`` that starts on; choices stay as they are."""
    chosen = arrays.with_choices(choices)
    space, places, start = window(chosen, sequence, first, tasks)
    _, makespan, best, used = _anneal(space, start, (), evaluations, hot, cold, bound, swaps, seed)
    if not np.isfinite(makespan):
        return Found(np.inf, sequence, choices, used)
    moved = sequence.copy()
    moved[places] = sequence[places][best]
    return Found(evaluate(chosen, moved), moved, choices, used, places=places)


def together(arrays: Arrays, sequence: Ints32, founds: Sequence[Found]) -> Found:
    """A sequence with what several windows of it found, but for windows that overlap earlier ones.

    No path leaves a window and comes back, and every rank's memory is the same at its ends: windows of
    one sequence may be changed independently of each other.
    """
    moved = sequence.copy()
    taken = np.zeros(len(sequence), dtype=bool)
    for found in founds:
        if found.places is not None and not taken[found.places].any():
            taken[found.places] = True
            moved[found.places] = found.sequence[found.places]
    return Found(evaluate(arrays, moved), moved, founds[0].choices, 1)


def _anneal(
    space: Space,
    sequence: Ints32,
    choices: tuple[int, ...],
    evaluations: int,
    hot: float,
    cold: float,
    bound: float,
    swaps: int,
    seed: int,
) -> tuple[tuple[int, ...], float, Ints32, int]:
    from ds_dip.scheduling import annealing

    current, best = sequence.copy(), sequence.copy()
    chosen = np.array(choices, dtype=np.int32)
    best_chosen = chosen.copy()
    n, ranks = len(sequence), len(space.base)
    ints, floats = np.empty(5 * n + 3 * ranks, dtype=np.int32), np.empty(8 * n)
    makespan, used = annealing.anneal(
        space,
        current,
        chosen,
        best,
        best_chosen,
        evaluations,
        hot,
        cold,
        bound,
        swaps,
        seeded(seed),
        ints,
        floats,
    )
    return tuple(best_chosen.tolist()), makespan if makespan >= 0 else np.inf, best, used


def decode(
    arrays: Arrays,
    choices: tuple[int, ...],
    backwards: bool,
    bundles: Ints32,
    evaluations: int,
    hot: float,
    cold: float,
    bound: float,
    seed: int,
) -> Found:
    """Anneal priorities decoded by the dual queue, on the problem or (``backwards``) its mirror.

    Finds nothing where the dual queue's rule of admission cannot hold with these choices.
    """
    from ds_dip.scheduling import permuting, queueing

    arrays = arrays.with_choices(choices)
    side = mirrored(arrays) if backwards else arrays
    try:
        graph, held = graph_of(side), bundles_of(side)
    except InfeasibleError:
        return Found(np.inf, bundles, choices, 1)
    best = bundles.copy()
    sequence = np.empty(arrays.n, dtype=np.int32)
    makespan, used = permuting.permute(
        graph,
        held.pointer,
        held.tasks,
        held.owner,
        held.owners,
        np.zeros((0, 0), dtype=np.int32),
        bundles.copy(),
        best,
        sequence,
        evaluations,
        hot,
        cold,
        bound,
        seeded(seed),
        *queueing.scratch(graph),
    )
    if not np.isfinite(makespan):
        return Found(np.inf, sequence, choices, used)
    order = rows(arrays, sequence[::-1] if backwards else sequence)
    return Found(evaluate(arrays, order), order, choices, used, best)


def rows(arrays: Arrays, sequence: NDArray[np.integer]) -> Ints32:
    """A sequence in running order, sorted by rank."""
    return flat(by_rank(arrays, sequence))[0]


def restrategize(arrays: Arrays, sequence: Ints32, choices: tuple[int, ...]) -> Found:
    """Choose every pair's strategy anew for a sequence, by the integer program of each rank."""
    chosen = choose(arrays, by_rank(arrays, sequence), None)
    if chosen is None:
        return Found(np.inf, sequence, choices, 1)
    return Found(evaluate(arrays.with_choices(chosen), sequence), sequence, chosen, 1)
