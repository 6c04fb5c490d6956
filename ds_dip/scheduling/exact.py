"""Proofs for small problems by OR-tools' CP-SAT (extra ``exact``), hinted by a found schedule."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from ds_dip.proving import solved
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.lifetimes import lifetimes
from ds_dip.scheduling.problem import Problem
from ds_dip.scheduling.result import Result, gap_of
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.timing import fits, positions, retime

UNITS = 10**7
"""Into how many whole units a makespan is cut where times are not whole numbers."""


def prove(problem: Problem, result: Result, seconds: float, workers: int = 1) -> Result:
    """Improve a result's schedule, choices of pairs and bound by CP-SAT for at most ``seconds``.

    Times that are no whole numbers are rounded down to a 10-millionth of the makespan, so that the
    bound holds. Raises ImportError without OR-tools.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError("proofs need OR-tools; install ds-dip[exact]") from error
    if result.schedule is None or result.timeline is None or result.status == "optimal":
        return result
    began = time.perf_counter()
    model = _Model(cp_model, problem, result)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = result.seed % 2**31
    status = solved(solver, model.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return replace(result, seconds=result.seconds + time.perf_counter() - began)
    schedule, times = result.schedule, result.timeline
    found = model.schedule(solver)
    chosen = model.arrays.with_choices(found.choices)
    better = retime(problem, found)
    if better.makespan < times.makespan and fits(chosen, positions(chosen, found)):
        schedule, times = found, better
    bound = math.ceil(solver.BestObjectiveBound() - 1e-6) / model.scale
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


class _Model:
    """Starts as variables, a choice a pair; ranks without overlap; memory as cumulative residences; the hint.

    Whatever is rounded is rounded down, so that a bound of the model bounds the problem.
    """

    def __init__(self, cp_model: Any, problem: Problem, result: Result) -> None:
        assert result.schedule is not None
        assert result.timeline is not None
        self.model = cp_model.CpModel()
        self.problem, self.arrays = problem, arrays_of(problem)
        self.scale = self._scale(result.makespan)
        self.horizon = math.ceil(result.makespan * self.scale)
        arrays, choices = self.arrays, result.schedule.choices
        self.duration: list[Any] = [self._whole(value) for value in arrays.duration.tolist()]
        self.picked = [self._pick(number, choices[number]) for number in range(len(problem.pairs))]
        self.start = [self.model.NewIntVar(0, self.horizon, "") for _ in range(arrays.n)]
        self.end = [
            start + length if isinstance(length, int) else self._variable(start + length)
            for start, length in zip(self.start, self.duration, strict=True)
        ]
        running = [self.model.NewIntervalVar(*row, "") for row in zip(self.start, self.duration, self.end, strict=True)]
        for rank in range(arrays.ranks):
            self.model.AddNoOverlap([running[task] for task in np.nonzero(arrays.rank == rank)[0].tolist()])
        makespan = self.model.NewIntVar(self._whole(result.lower_bound), self.horizon, "makespan")
        for task in range(arrays.n):
            self.model.Add(makespan >= self.end[task] + self._whole(float(arrays.tail[task])))
            for edge in range(arrays.succ_ptr[task], arrays.succ_ptr[task + 1]):
                delay = self._whole(float(arrays.succ_delay[edge]))
                self.model.Add(self.start[int(arrays.succ[edge])] >= self.end[task] + delay)
        self._memory()
        self.model.Minimize(makespan)
        for task, number in enumerate(arrays.id.tolist()):
            self.model.AddHint(self.start[task], self._whole(result.timeline.start[number]))
        self.model.AddHint(makespan, self.horizon)

    def schedule(self, solver: Any) -> Schedule:
        """The solver's solution as orders and choices."""
        arrays = self.arrays
        rank, ids = arrays.rank.tolist(), arrays.id.tolist()
        place = sorted(range(arrays.n), key=lambda task: (solver.Value(self.start[task]), arrays.depth[task]))
        order = tuple(tuple(ids[task] for task in place if rank[task] == own) for own in range(arrays.ranks))
        return Schedule(
            order, tuple(next(number for number, own in enumerate(row) if solver.Value(own)) for row in self.picked)
        )

    def _whole(self, value: float) -> int:
        return math.floor(value * self.scale * (1 + 1e-15))

    def _variable(self, expression: Any) -> Any:
        found = self.model.NewIntVar(0, 2 * self.horizon, "")
        self.model.Add(found == expression)
        return found

    def _scale(self, makespan: float) -> float:
        """Units a time unit: 1 where all times are whole numbers."""
        arrays = self.arrays
        values = [*arrays.duration.tolist(), *arrays.tail.tolist(), *arrays.succ_delay.tolist()]
        for pair in self.problem.pairs:
            for choice in pair.choices:
                values += [choice.forward_duration, choice.backward_duration, choice.weight_duration or 0.0]
        whole = all(float(value).is_integer() for value in values) and makespan < 2**40
        return 1.0 if whole else UNITS / max(makespan, 1e-300)

    def _pick(self, number: int, hinted: int) -> list[Any]:
        """A literal for each choice of a pair, exactly one true; durations of its tasks become expressions."""
        choices = self.problem.pairs[number].choices
        literals = [self.model.NewBoolVar("") for _ in choices]
        self.model.AddExactlyOne(literals)
        for place, literal in enumerate(literals):
            self.model.AddHint(literal, place == hinted)
        lengths = [(own.forward_duration, own.backward_duration, own.weight_duration or 0.0) for own in choices]
        for task, values in zip(self.arrays.pairs[number].tolist(), zip(*lengths, strict=True), strict=True):
            if task >= 0:
                whole = [self._whole(value) for value in values]
                terms = [value * literal for value, literal in zip(whole, literals, strict=True)]
                self.duration[task] = whole[0] if len(set(whole)) == 1 else self._variable(sum(terms))
        return literals

    def _memory(self) -> None:
        """Each acquire lives until its release, that of a pair if its choice is taken."""
        arrays, problem = self.arrays, self.problem
        acquire, release = arrays.acquire.copy(), arrays.release.copy()
        acquire[arrays.pairs[:, :2]] = release[arrays.pairs[:, :2]] = 0.0
        weight = arrays.pairs[arrays.pairs[:, 2] >= 0, 2]
        release[weight] = acquire[weight]
        fixed = lifetimes(replace(arrays, acquire=acquire, release=release))
        held: list[list[tuple[int, int, float, Any]]] = [[] for _ in range(arrays.ranks)]
        for source, target, mass in zip(*(values.tolist() for values in fixed), strict=True):
            held[arrays.rank[source]].append((source, target, mass, None))
        for number, pair in enumerate(problem.pairs):
            forward, backward, last = arrays.pairs[number].tolist()
            for choice, literal in zip(pair.choices, self.picked[number], strict=True):
                own = held[arrays.rank[forward]]
                own.append((forward, backward if last < 0 else last, choice.memory, literal))
                own.append((backward, backward, choice.backward_acquire, literal))
        for rank, rows in enumerate(held):
            capacity = float(arrays.capacity[rank])
            if math.isinf(capacity):
                continue
            exact = all(float(value).is_integer() for value in [capacity, *(mass for *_, mass, _ in rows)])
            unit = 1.0 if exact else 10**6 / max(capacity, 1e-300)
            intervals, demands = [], []
            for source, target, mass, literal in rows:
                demand = math.floor(mass * unit * (1 + 1e-12))
                if not demand:
                    continue
                row = (self.start[source], self.model.NewIntVar(0, self.horizon, ""), self.end[target])
                intervals.append(
                    self.model.NewIntervalVar(*row, "")
                    if literal is None
                    else self.model.NewOptionalIntervalVar(*row, literal, "")
                )
                demands.append(demand)
            self.model.AddCumulative(intervals, demands, math.floor(capacity * unit * (1 + 1e-12)))
