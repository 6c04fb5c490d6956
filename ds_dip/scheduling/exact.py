"""Proofs for small problems by OR-tools' CP-SAT (extra ``exact``), hinted by a found schedule."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from ds_dip.scheduling.arrays import Arrays, arrays_of
from ds_dip.scheduling.lifetimes import lifetimes
from ds_dip.scheduling.problem import Problem
from ds_dip.scheduling.result import Result, gap_of
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.timing import retime

UNITS = 10**7
"""Into how many whole units a makespan is cut where times are not whole numbers."""


def prove(problem: Problem, result: Result, seconds: float, workers: int = 1) -> Result:
    """Improve a result's schedule and bound by CP-SAT for at most ``seconds``.

    Times that are no whole numbers are rounded down to a 10-millionth of the makespan, so that the
    bound holds. Raises ImportError without OR-tools, ValueError where pairs have several choices.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError("proofs need OR-tools; install ds-dip[exact]") from error
    if any(len(pair.choices) > 1 for pair in problem.pairs):
        raise ValueError("proofs take one choice a pair; leave out the others, or solve without --exact")
    if result.schedule is None or result.timeline is None or result.status == "optimal":
        return result
    began = time.perf_counter()
    arrays = arrays_of(problem).with_choices(result.schedule.choices)
    scale = _scale(arrays, result.makespan)
    model, starts = _model(cp_model, arrays, scale, result)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = result.seed % 2**31
    status = solver.Solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return replace(result, seconds=result.seconds + time.perf_counter() - began)
    schedule, times = result.schedule, result.timeline
    rank, ids = arrays.rank.tolist(), arrays.id.tolist()
    place = sorted(range(arrays.n), key=lambda task: (solver.Value(starts[task]), arrays.depth[task]))
    order = tuple(tuple(ids[task] for task in place if rank[task] == own) for own in range(arrays.ranks))
    found = Schedule(order, result.schedule.choices)
    better = retime(problem, found)
    if better.makespan < times.makespan:
        schedule, times = found, better
    bound = math.ceil(solver.BestObjectiveBound() - 1e-6) / scale
    name = result.bound_name
    if bound > result.lower_bound:
        name = "cp-sat"
    bound = min(max(bound, result.lower_bound), times.makespan)
    gap, verdict = gap_of(times.makespan, bound)
    return replace(
        result,
        schedule=schedule,
        timeline=times,
        makespan=times.makespan,
        lower_bound=bound,
        bound_name=name,
        gap=gap,
        status=verdict,
        seconds=result.seconds + time.perf_counter() - began,
    )


def _scale(arrays: Arrays, makespan: float) -> float:
    """Units a time unit: 1 where all times are whole numbers."""
    values = [*arrays.duration.tolist(), *arrays.tail.tolist(), *arrays.succ_delay.tolist()]
    whole = all(float(value).is_integer() for value in values) and makespan < 2**40
    return 1.0 if whole else UNITS / max(makespan, 1e-300)


def _model(cp_model: Any, arrays: Arrays, scale: float, result: Result) -> tuple[Any, list[Any]]:
    """Starts as variables; ranks without overlap; memory as cumulative residences; the hint."""

    def whole(value: float) -> int:
        return math.floor(value * scale * (1 + 1e-15))

    horizon = math.ceil(result.makespan * scale)
    model = cp_model.CpModel()
    makespan = model.NewIntVar(whole(result.lower_bound), horizon, "makespan")
    duration = [whole(value) for value in arrays.duration.tolist()]
    starts = [model.NewIntVar(0, horizon, "") for _ in range(arrays.n)]
    running = [model.NewFixedSizeIntervalVar(start, length, "") for start, length in zip(starts, duration, strict=True)]
    for rank in range(arrays.ranks):
        model.AddNoOverlap([running[task] for task in range(arrays.n) if arrays.rank[task] == rank])
    for task in range(arrays.n):
        model.Add(makespan >= starts[task] + duration[task] + whole(float(arrays.tail[task])))
        for edge in range(arrays.succ_ptr[task], arrays.succ_ptr[task + 1]):
            after, delay = int(arrays.succ[edge]), whole(float(arrays.succ_delay[edge]))
            model.Add(starts[after] >= starts[task] + duration[task] + delay)
    _memory(model, arrays, starts, duration, horizon)
    model.Minimize(makespan)
    begin = result.timeline.start if result.timeline else {}
    for task, number in enumerate(arrays.id.tolist()):
        model.AddHint(starts[task], whole(begin[number]))
    model.AddHint(makespan, horizon)
    return model, starts


def _memory(model: Any, arrays: Arrays, starts: list[Any], duration: list[int], horizon: int) -> None:
    """Each acquire lives until its release; demands are rounded down, so that the bound holds."""
    residences = [*zip(*(values.tolist() for values in lifetimes(arrays)), strict=True)]
    for rank in range(arrays.ranks):
        capacity = float(arrays.capacity[rank])
        if math.isinf(capacity):
            continue
        own = [entry for entry in residences if arrays.rank[entry[0]] == rank]
        exact = all(float(value).is_integer() for value in [capacity, *(mass for *_, mass in own)])
        unit = 1.0 if exact else 10**6 / max(capacity, 1e-300)
        intervals = []
        for source, target, _ in own:
            length = model.NewIntVar(0, horizon, "")
            end = starts[target] + duration[target]
            intervals.append(model.NewIntervalVar(starts[source], length, end, ""))
        demands = [math.floor(mass * unit * (1 + 1e-12)) for *_, mass in own]
        model.AddCumulative(intervals, demands, math.floor(capacity * unit * (1 + 1e-12)))
