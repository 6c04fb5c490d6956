"""Proofs by OR-tools' CP-SAT (extra ``exact``), and what DFLOP's scheduler solves: the fullest bucket is minimised."""

from __future__ import annotations

import math

import numpy as np

from ds_dip.balancing.balance import Balance, made
from ds_dip.balancing.problem import Loads
from ds_dip.proving import solved

#: Whole units that the mean bucket is cut into: CP-SAT's bounds get weak with larger numbers.
_UNITS = 10**6


def prove(loads: Loads, found: Balance, seconds: float, workers: int = 1) -> Balance:
    """Improve an assignment and its bound by CP-SAT for at most ``seconds``; never worse than ``found``.

    Seconds are rounded down to a millionth of the bound, so that the bound holds. Raises ImportError without OR-tools.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError("proofs need OR-tools; install ds-dip[exact]") from error
    if found.gap <= 0 or loads.items == 0:
        return found
    scale = _UNITS / found.lower_bound
    work = np.floor(loads.seconds * scale).astype(np.int64)
    model = cp_model.CpModel()
    places = [
        [model.new_bool_var(f"{item} in {bucket}") for bucket in range(loads.buckets)] for item in range(loads.items)
    ]
    least, most = found.lower_bound * scale * (1 - 1e-9), found.makespan * scale
    fullest = model.new_int_var(math.floor(least), math.ceil(most), "fullest")
    bucket_of = np.zeros(loads.items, np.int64)
    for bucket, group in enumerate(found.groups):
        bucket_of[list(group)] = bucket
    for item, own in enumerate(places):
        model.add_exactly_one(own)
        for bucket, place in enumerate(own):
            model.add_hint(place, bucket == bucket_of[item])
    for bucket in range(loads.buckets):
        column = [own[bucket] for own in places]
        for r in range(loads.resources):
            model.add(cp_model.LinearExpr.weighted_sum(column, work[:, r].tolist()) <= fullest)
        if loads.capacity is not None:
            model.add(cp_model.LinearExpr.weighted_sum(column, loads.grid.memory.tolist()) <= loads.grid.capacity)
        if loads.items >= loads.buckets:
            model.add_at_least_one(column)
    model.minimize(fullest)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    status = solved(solver, model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return found
    bound = max(found.lower_bound, math.ceil(solver.best_objective_bound - 1e-6) / scale)
    answer = np.array([next(b for b, place in enumerate(own) if solver.value(place)) for own in places], np.int64)
    better = made(loads, answer, bound, "exact")
    if better.makespan < found.makespan:
        return made(loads, answer, min(bound, better.makespan), "exact")
    return made(loads, bucket_of, min(bound, found.makespan), found.method)
