"""``solve``: the best schedule a budget allows, never worse than the best baseline, with its bound."""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np

from ds_dip.scheduling.admission import admission
from ds_dip.scheduling.arrays import Arrays, arrays_of
from ds_dip.scheduling.baselines import BASELINES
from ds_dip.scheduling.bounds import lower_bound
from ds_dip.scheduling.problem import InfeasibleError, Problem
from ds_dip.scheduling.result import Result, gap_of
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.search import Budget, Pool, Portfolio, Progress
from ds_dip.scheduling.static import BaselineError
from ds_dip.scheduling.timing import fits, fitting, flat, leanest, positions, schedule_of, starts, timeline


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
    bound, name = lower_bound(problem)
    left = Budget(budget, evaluations, began)
    try:
        arrays = arrays_of(problem)
        start = starting_choices(problem)
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
    baselines = _baselines(problem, arrays, pool) if not same_order else {}
    if warm_start is not None:
        chosen = arrays.with_choices(warm_start.choices)
        orders = positions(chosen, warm_start)
        if fits(chosen, orders):
            pool.add(_makespan(chosen, orders), flat(orders)[0], warm_start.choices)
    Portfolio(arrays, pool, bound, seed, start).run(workers, progress)
    return _result(arrays, pool, (bound, name), seed, baselines)


def starting_choices(problem: Problem) -> list[tuple[int, ...]]:
    """Choices of all pairs to begin with: the first, the fastest, the leanest, and two between.

    Raises InfeasibleError where not even the leanest fits.
    """
    fitting(problem)
    arrays = arrays_of(problem)
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
    found = []
    for choices in dict.fromkeys(wanted):
        with suppress(InfeasibleError):
            admission(arrays.with_choices(choices))
            found.append(choices)
    return found


def _baselines(problem: Problem, arrays: Arrays, pool: Pool) -> dict[str, float | str]:
    """Every baseline's makespan or the reason of its refusal; those that fit seed the search."""
    found: dict[str, float | str] = {}
    for name, make in BASELINES.items():
        try:
            schedule = make(problem)
        except BaselineError as error:
            found[name] = str(error)
            continue
        chosen = arrays.with_choices(schedule.choices)
        orders = positions(chosen, schedule)
        pool.budget.used += 1
        found[name] = makespan = _makespan(chosen, orders)
        pool.add(makespan, flat(orders)[0], schedule.choices)
    return found


def _makespan(arrays: Arrays, orders: list[list[int]]) -> float:
    return float((starts(arrays, orders) + arrays.duration + arrays.tail).max(initial=0.0))


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
