"""``solve``: the best schedule a budget allows, never worse than the best baseline, with its bound."""

from __future__ import annotations

import time

import numpy as np

from ds_dip.scheduling.arrays import Arrays, arrays_of
from ds_dip.scheduling.baselines import BASELINES
from ds_dip.scheduling.bounds import lower_bound
from ds_dip.scheduling.problem import InfeasibleError, Problem
from ds_dip.scheduling.result import Result, gap_of
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.search import Budget, Pool, Portfolio, Progress
from ds_dip.scheduling.static import BaselineError
from ds_dip.scheduling.timing import fits, fitting, flat, positions, schedule_of, starts, timeline


def solve(
    problem: Problem,
    *,
    budget: float | None = None,
    evaluations: int | None = None,
    seed: int = 0,
    workers: int = 1,
    warm_start: Schedule | None = None,
    same_order: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Search for a short schedule within memory.

    ``budget`` is seconds, ``evaluations`` complete schedules scored; without either the search has
    one second. With ``evaluations`` alone the answer depends on ``seed`` and ``workers`` only.
    ``warm_start`` is a schedule of this problem to begin with. ``same_order`` keeps microbatches in
    one order on all ranks. An infeasible problem gives a Result that says why; ProblemError is
    raised for one that means nothing.
    """
    began = time.perf_counter()
    if budget is None and evaluations is None:
        budget = 1.0
    arrays_of(problem)
    bound, name = lower_bound(problem)
    left = Budget(budget, evaluations, began)
    try:
        arrays, choices = fitting(problem)
    except InfeasibleError as error:
        return Result(
            schedule=None,
            timeline=None,
            makespan=0.0,
            lower_bound=bound,
            bound_name=name,
            gap=0.0,
            status="infeasible",
            evaluations=0,
            seconds=left.elapsed(),
            seed=seed,
            reason=error.reason,
            sufficient_capacity=error.sufficient_capacity,
        )
    pool = Pool(left)
    baselines = _baselines(problem, arrays, choices, pool) if not same_order else {}
    if warm_start is not None and warm_start.choices == choices:
        orders = positions(arrays, warm_start)
        if fits(arrays, orders):
            pool.add(_makespan(arrays, orders), flat(orders)[0])
    Portfolio(arrays, pool, bound, seed).run(workers, progress)
    return _result(arrays, choices, pool, (bound, name), seed, baselines)


def _baselines(problem: Problem, arrays: Arrays, choices: tuple[int, ...], pool: Pool) -> dict[str, float | str]:
    """Every baseline's makespan or the reason of its refusal; those that fit seed the search."""
    found: dict[str, float | str] = {}
    for name, make in BASELINES.items():
        try:
            schedule = make(problem)
        except BaselineError as error:
            found[name] = str(error)
            continue
        orders = positions(arrays, schedule)
        pool.budget.used += 1
        found[name] = _makespan(arrays.with_choices(schedule.choices), orders)
        if schedule.choices == choices:
            pool.add(_makespan(arrays, orders), flat(orders)[0])
    return found


def _makespan(arrays: Arrays, orders: list[list[int]]) -> float:
    return float((starts(arrays, orders) + arrays.duration + arrays.tail).max(initial=0.0))


def _result(
    arrays: Arrays,
    choices: tuple[int, ...],
    pool: Pool,
    bound: tuple[float, str],
    seed: int,
    baselines: dict[str, float | str],
) -> Result:
    sequence = pool.elite[0][1]
    orders = [sequence[arrays.rank[sequence] == own].tolist() for own in range(arrays.ranks)]
    times = timeline(arrays, orders, np.asarray(starts(arrays, orders)))
    gap, status = gap_of(times.makespan, bound[0])
    return Result(
        schedule=schedule_of(arrays, orders, choices),
        timeline=times,
        makespan=times.makespan,
        lower_bound=bound[0],
        bound_name=bound[1],
        gap=gap,
        status=status,
        evaluations=pool.budget.used,
        seconds=pool.budget.elapsed(),
        seed=seed,
        baselines=baselines,
        curve=tuple(pool.curve),
    )
