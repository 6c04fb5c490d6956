"""``solve``: the best schedule a budget allows, never worse than the best baseline, with its bound."""

from __future__ import annotations

import functools
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ds_dip.scheduling.arrays import Arrays, arrays_of
from ds_dip.scheduling.baselines import BASELINES, fitted
from ds_dip.scheduling.bounds import lower_bound
from ds_dip.scheduling.jobs import bundles_of, decode, reorder
from ds_dip.scheduling.problem import InfeasibleError, Problem, Task
from ds_dip.scheduling.result import Result, gap_of
from ds_dip.scheduling.same_order import search_same_order
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.search import Budget, Pool, Portfolio, Progress, Stop
from ds_dip.scheduling.static import BaselineError
from ds_dip.scheduling.timing import (
    fits,
    flat,
    interleave,
    makespan_of,
    positions,
    schedule_of,
    starting_choices,
    starts,
    timeline,
)
from ds_dip.scheduling.tree import METHODS, search_orders


def solve(
    problem: Problem,
    *,
    budget: float | None = None,
    evaluations: int | None = None,
    seed: int = 0,
    workers: int = 1,
    warm_start: Schedule | None = None,
    same_order: bool = False,
    method: str = "portfolio",
    progress: Progress | None = None,
) -> Result:
    """Search for a short schedule within memory.

    ``budget`` is seconds, ``evaluations`` complete schedules scored; without either the search has
    one second. With ``evaluations`` alone the answer depends on ``seed`` and ``workers`` only.
    ``warm_start`` is a schedule of this problem to begin with. ``same_order`` keeps microbatches in
    one order on all ranks. ``method`` is ``portfolio``, or for comparison ``mcts``, ``dfs`` or
    ``random``, which search segment orders alone. ``progress`` may raise ``Stop`` after any round: the
    best so far is the answer. The first call of a process also loads compiled
    code (under a second, not counted); :func:`warm` does so ahead of time. An infeasible problem
    gives a Result that says why; ProblemError is raised for one that means nothing.
    """
    if method != "portfolio" and method not in METHODS:
        raise ValueError(f"method is {method!r}; expected portfolio, {', '.join(METHODS)}")
    warm()
    began = time.perf_counter()
    if budget is None and evaluations is None:
        budget = 1.0
    bound, name = lower_bound(problem)
    left = Budget(budget, evaluations, began)
    try:
        arrays = arrays_of(problem)
        start = starting_choices(problem)
    except InfeasibleError as error:
        return _infeasible(error, (bound, name), left, seed)
    pool = Pool(left)
    if method != "portfolio":
        with suppress(Stop):
            search_orders(method, arrays.with_choices(start[0]), start[0], pool, bound, seed, workers, progress)
        return _result(arrays, pool, (bound, name), seed, {})
    if same_order:
        try:
            with suppress(Stop):
                search_same_order(arrays.with_choices(start[0]), start[0], pool, bound, seed, workers, progress)
        except InfeasibleError as error:
            return _infeasible(error, (bound, name), left, seed)
        return _result(arrays, pool, (bound, name), seed, {})
    baselines = _baselines(problem, pool)
    # The dual queue's first-come order is a seed by itself; with pairs it may have better choices than seeds have.
    for known in ([interleave(problem)] if problem.pairs else []) + ([warm_start] if warm_start is not None else []):
        chosen = arrays.with_choices(known.choices)
        orders = positions(chosen, known)
        if fits(chosen, orders):
            pool.add(makespan_of(chosen, orders), flat(orders)[0], known.choices)
    with suppress(Stop):
        Portfolio(arrays, pool, bound, seed, start).run(workers, progress)
    return _result(arrays, pool, (bound, name), seed, baselines)


@functools.cache
def warm() -> None:
    """Load (on the first use ever: compile) all kernels; about half a second once a process."""
    task = Task(0, 0, "F", "warm", 0, 0, 0, 0, 1.0)
    tasks = (task, replace(task, id=1, kind="B"), replace(task, id=2, microbatch=1))
    arrays = arrays_of(Problem(1, (None,), tasks, ((0, 1, 0.0),)))
    first = decode(arrays, (), False, bundles_of(arrays).first_come, 1, 1.0, 1.0, 0.0, 0)
    reorder(arrays, first.sequence, (), 1, 1.0, 1.0, 0.0, 0, 0)


def _infeasible(error: InfeasibleError, bound: tuple[float, str], budget: Budget, seed: int) -> Result:
    return Result(
        schedule=None,
        timeline=None,
        makespan=0.0,
        lower_bound=bound[0],
        bound_name=bound[1],
        gap=0.0,
        status="infeasible",
        evaluations=budget.used,
        seconds=budget.elapsed(),
        seed=seed,
        reason=error.reason,
        sufficient_capacity=error.sufficient_capacity,
    )


def _baselines(problem: Problem, pool: Pool) -> dict[str, float | str]:
    """Every baseline's makespan or the reason of its refusal; those that fit seed the search."""
    found: dict[str, float | str] = {}
    for name in BASELINES:
        try:
            baseline = fitted(problem, name)
        except BaselineError as error:
            found[name] = str(error)
            continue
        pool.budget.used += 1
        found[name] = baseline.makespan
        pool.add(baseline.makespan, flat(baseline.orders)[0], baseline.choices)
    return found


def _result(
    arrays: Arrays,
    pool: Pool,
    bound: tuple[float, str],
    seed: int,
    baselines: dict[str, float | str],
) -> Result:
    _, sequence, choices = pool.elite[0]
    arrays = arrays.with_choices(choices)
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
