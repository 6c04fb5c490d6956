"""Search with one order of microbatches on all ranks, as in a permutation flow shop."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from ds_dip.scheduling.admission import admission
from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.graph import Ints32, graph_of
from ds_dip.scheduling.jobs import DECODE_COST, FIRST_JOB, LONGEST_JOB, Found, evaluate, rows, seeded
from ds_dip.scheduling.problem import InfeasibleError
from ds_dip.scheduling.search import Pool, Progress
from ds_dip.scheduling.space import roles


def search_same_order(
    arrays: Arrays,
    choices: tuple[int, ...],
    pool: Pool,
    bound: float,
    seed: int,
    workers: int,
    progress: Progress | None = None,
) -> None:
    """Anneal the order of microbatches until the pool's budget is over or the bound is reached.

    Every rank runs the microbatches of a role (kind, module, chunk, sub) in that one order. Raises
    InfeasibleError where the first-come order cannot be kept within memory.
    """
    if admission(arrays).chain:
        raise InfeasibleError(
            "one order on all ranks needs every microbatch to fit whole; raise the capacity or drop the same order",
            tuple(None if np.isinf(limit) else float(limit) for limit in admission(arrays).need.max(axis=0)),
        )
    budget, draws = pool.budget, random.Random(seed)
    values = np.unique(arrays.microbatch)
    held: tuple[float, Ints32] = (np.inf, np.arange(len(values), dtype=np.int32))
    rounds = 0
    with ThreadPoolExecutor(workers) as threads:
        while not budget.over() and pool.best > bound * (1 + 1e-9):
            share = min(LONGEST_JOB, FIRST_JOB * 1.2**rounds)
            left = budget.left(DECODE_COST * arrays.n + 1e-6)
            if budget.evaluations is not None:
                left = min(left, (budget.evaluations - budget.used) // workers)
            count = max(1, min(left, int(share / (DECODE_COST * arrays.n + 1e-6))))
            heat = max(draws.choice((0.003, 0.01, 0.03)) * (pool.best if rounds else bound), 1e-12)
            order = held[1]
            ask = partial(_permute, arrays, choices, order, count, heat, bound)
            for found in threads.map(ask, [draws.getrandbits(62) for _ in range(workers)]):
                budget.used += found.evaluations
                pool.add(found.makespan, found.sequence, choices)
                if found.bundles is not None and found.makespan < held[0]:
                    held = (found.makespan, found.bundles)
            if not pool.elite:
                raise InfeasibleError(
                    "no order of microbatches on all ranks was found within memory; raise the capacity",
                    tuple(None if np.isinf(limit) else float(limit) for limit in arrays.capacity),
                )
            rounds += 1
            if progress:
                progress(pool.best, bound, budget.used, budget.elapsed())


def _permute(
    arrays: Arrays, choices: tuple[int, ...], order: Ints32, count: int, heat: float, bound: float, seed: int
) -> Found:
    from ds_dip.scheduling import permuting, queueing

    shared = graph_of(arrays)
    graph = shared._replace(chained=shared.chained.copy(), waiting=shared.waiting.copy())
    column = np.unique(arrays.microbatch, return_inverse=True)[1].reshape(-1)
    tasks = np.lexsort([arrays.priority, column])
    pointer = np.searchsorted(column[tasks], np.arange(len(order) + 1)).astype(np.int32)
    best, sequence = order.copy(), np.empty(arrays.n, dtype=np.int32)
    makespan, used = permuting.permute(
        graph,
        pointer,
        tasks.astype(np.int32),
        order,
        0,
        roles(arrays).astype(np.int32),
        order.copy(),
        best,
        sequence,
        count,
        heat,
        heat / 20,
        bound * (1 + 1e-9),
        seeded(seed),
        *queueing.scratch(graph),
    )
    if not np.isfinite(makespan):
        return Found(np.inf, sequence, choices, used)
    kept = rows(arrays, sequence)
    return Found(evaluate(arrays, kept), kept, choices, used, best)
