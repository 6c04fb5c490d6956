"""How good and how fast the searcher is: ``ds-dip bench schedule`` on instances anyone can make again."""

from __future__ import annotations

import itertools
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.carrying import carry_over
from ds_dip.scheduling.graph import compact_of, graph_of
from ds_dip.scheduling.instances import multimodal, strategic, unequal, uniform
from ds_dip.scheduling.jobs import bundles_of, seeded
from ds_dip.scheduling.problem import Problem
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.solving import solve, warm
from ds_dip.scheduling.timing import first_come, fixed, flat, interleave, retime

Row = dict[str, Any]
SMALL: dict[str, tuple[Callable[[], Problem], float | None]] = {
    "P2 v1 m6 cap 2": (lambda: unequal(2, 1, 6, 873654221, 2), 1233),
    "P2 v1 m6 cap 1": (lambda: unequal(2, 1, 6, 873654221, 1), 2124),
    "P3 v1 m6 cap 3": (lambda: unequal(3, 1, 6, 379008056, 3), 1150),
    "P4 v1 m6 cap 4": (lambda: unequal(4, 1, 6, 1866992158, 4), 1243),
    "P4 v1 m8 cap 4": (lambda: unequal(4, 1, 8, 216771124, 4), 1999),
    "P4 v1 m8 cap 2": (lambda: unequal(4, 1, 8, 216771124, 2), 2969),
    "P4 v2 m8": (lambda: uniform(4, 2, 8), 57),
    "P4 v2 m5": (lambda: uniform(4, 2, 5), 39),
    "P4 v2 m6 cap 8": (lambda: uniform(4, 2, 6, cap=8), 45),
    "P4 v2 m10": (lambda: uniform(4, 2, 10), 69),
    "P8 v2 m12": (lambda: uniform(8, 2, 12), 93),
}
"""Instances with proven optima: unequal ones by Taillard's generator, uniform ones looped."""


def machine() -> Row:
    """What it ran on: processor, cores, Python and numba."""
    import os

    import numba

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "numba": numba.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def small(seconds: float, seeds: int, fresh: int) -> Iterator[Row]:
    """Makespans after ``seconds`` on instances with known optima and ``fresh`` ones with the best of a long run."""
    cases: dict[str, tuple[Callable[[], Problem], float | None]] = dict(SMALL)
    for number in range(fresh):
        ranks, microbatches, cap = ((8, 8, 8), (8, 8, 4), (4, 10, 3), (6, 6, 6))[number % 4]
        make = _unequal(ranks, microbatches, 1000 + number, cap)
        cases[f"P{ranks} v1 m{microbatches} cap {cap} fresh {number}"] = (make, None)
    for name, (make, optimum) in cases.items():
        problem = make()
        runs = [solve(problem, budget=seconds, seed=seed) for seed in range(seeds)]
        best = optimum
        if best is None:
            longer = solve(problem, budget=10 * seconds, seed=seeds)
            best = min([longer.makespan, *(run.makespan for run in runs)])
        gaps = [run.makespan / best - 1 for run in runs]
        yield {
            "instance": name,
            "tasks": len(problem.tasks),
            "best": best,
            "proven": optimum is not None or best <= runs[0].lower_bound,
            "median gap": statistics.median(gaps),
            "worst gap": max(gaps),
            "gap to bound": statistics.median(run.gap for run in runs),
            "evaluations/s": statistics.median(run.evaluations / max(run.seconds, 1e-9) for run in runs),
        }


def _unequal(ranks: int, microbatches: int, seed: int, cap: float) -> Callable[[], Problem]:
    return lambda: unequal(ranks, 1, microbatches, seed, cap)


def speed() -> Iterator[Row]:
    """Tasks and roll-outs a second of processor time, on about 1 000 tasks."""
    from ds_dip.scheduling import kernels

    warm()
    problem = multimodal(4, 19, 1)
    arrays = arrays_of(problem)
    orders = first_come(arrays)
    steps = fixed(arrays, orders)
    durations = np.repeat(arrays.duration[steps.task][:, None], 32, axis=1)
    end, makespan = np.empty_like(durations), np.empty(32)
    rate = _rate(
        lambda: kernels.retime_many(steps.pointer, steps.before, steps.delay, durations, steps.tail, end, makespan)
    )
    yield {"what": "re-timing a fixed order, 32 duration vectors", "per second": rate * arrays.n * 32, "of": "tasks"}
    sequence, offset = flat(orders)
    start, finish = np.empty(arrays.n), np.empty(arrays.n)
    room = np.empty(arrays.n + 3 * arrays.ranks, dtype=np.int32)
    compact = compact_of(arrays)
    rate = _rate(lambda: kernels.retime(*compact, arrays.tail, sequence, offset, np.inf, start, finish, room))
    yield {"what": "re-timing a changed order", "per second": rate * arrays.n, "of": "tasks"}
    for name, capped in (("without memory", problem), ("with memory (2x)", multimodal(4, 19, 1, cap=2))):
        roll = _roller(capped)
        roll()
        yield {"what": f"roll-outs of {arrays.n} tasks {name}", "per second": 20 * _rate(roll), "of": "roll-outs"}
    yield {"what": "two workers over one, roll-outs", "per second": _scaling(problem), "of": "times"}


def _roller(problem: Problem) -> Callable[[], object]:
    """Twenty random roll-outs of a problem."""
    from ds_dip.scheduling import permuting, queueing

    arrays = arrays_of(problem)
    graph, held = graph_of(arrays), bundles_of(arrays)
    order, best = held.first_come.copy(), held.first_come.copy()
    sequence, state, room = np.empty(arrays.n, dtype=np.int32), seeded(1), queueing.scratch(graph)
    return lambda: permuting.roll_out(graph, held.pointer, held.tasks, order, 0, 20, best, sequence, state, *room)


def _rate(call: Callable[[], object]) -> float:
    """Calls a second of processor time of this thread: the best of five measurements."""
    call()
    best = 0.0
    for _ in range(5):
        count, began = 0, time.thread_time()
        while time.thread_time() - began < 0.1:
            call()
            count += 1
        best = max(best, count / (time.thread_time() - began))
    return best


def _scaling(problem: Problem) -> float:
    """How much more two threads do than one in the same time: the best of three measurements."""
    rollers = [_roller(problem), _roller(problem)]

    def work(roll: Callable[[], object]) -> float:
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < 0.5:
            roll()
            count += 1
        return count / (time.perf_counter() - began)

    best = 0.0
    with ThreadPoolExecutor(2) as threads:
        for _ in range(3):
            one = work(rollers[0])
            best = max(best, sum(threads.map(work, rollers)) / one)
    return best


def large(seconds: float, workers: int) -> Iterator[Row]:
    """VLM-L size (8 ranks, 64 microbatches) without and with capacity, and with memory strategies."""
    for laps in (4, 10):
        for cap in (None, 1.5, 2.0, 3.0):
            problem = multimodal(8, 64, 1, laps=laps, cap=cap)
            soon, later = (solve(problem, budget=budget, workers=workers) for budget in (0.1, seconds))
            greedy = [retime(problem, interleave(problem)).makespan]
            greedy += [value for value in later.baselines.values() if isinstance(value, float)]
            row = {
                "instance": f"P8 v{laps} m64",
                "tasks": len(problem.tasks),
                "cap": cap,
                "gap to bound 0.1 s": soon.gap,
                "seconds of 0.1": soon.seconds,
                "gap to bound": later.gap,
                "bound": later.bound_name,
                "over best greedy": min(greedy) / later.makespan - 1,
            }
            if cap is not None and laps == 4:
                chosen = solve(strategic(problem), budget=seconds, workers=workers)
                free = solve(multimodal(8, 64, 1, laps=laps), budget=seconds, workers=workers)
                row["won back by strategies"] = (later.makespan - chosen.makespan) / (later.makespan - free.makespan)
            yield row


SHORT: dict[str, Callable[[int], Problem]] = {
    "P2 v1 m6": lambda seed: multimodal(2, 6, seed, laps=1, images=12, group=6),
    "P2 v2 m8 cap 2": lambda seed: multimodal(2, 8, seed, laps=2, images=24, cap=2),
    "P2 v2 m16 cap 2": lambda seed: multimodal(2, 16, seed, laps=2, images=24, cap=2),
}
"""Batches of a small job by seed, one after another as a planner gets them."""


def short(batches: int = 8) -> Iterator[Row]:
    """A planner's searches of 20 and 50 ms, without and with the last batch's order, against one of 250 ms."""
    warm()
    for name, make in SHORT.items():
        problems = [make(seed) for seed in range(1, batches + 1)]
        longer = [solve(problem, budget=0.25).makespan for problem in problems]
        greedy = [retime(problem, interleave(problem)).makespan for problem in problems]
        for budget, carried in itertools.product((0.02, 0.05), (False, True)):
            took, gaps = [], []
            last: tuple[Problem, Schedule] | None = None
            for problem, best in zip(problems, longer, strict=True):
                # A copy, as arrays are remembered by a problem's identity.
                problem = replace(problem)
                began = time.perf_counter()
                start = carry_over(*last, problem) if carried and last else None
                result = solve(problem, budget=budget, warm_start=start)
                took.append(time.perf_counter() - began)
                gaps.append(result.makespan / best - 1)
                assert result.schedule is not None
                last = problem, result.schedule
            yield {
                "instance": name,
                "tasks": len(problems[0].tasks),
                "budget ms": 1000 * budget,
                "last order": "carried over" if carried else "-",
                "median ms": 1000 * statistics.median(took),
                "worst ms": 1000 * max(took),
                "mean gap to 250 ms": statistics.mean(gaps),
                "dual queue gap": statistics.mean(value / best - 1 for value, best in zip(greedy, longer, strict=True)),
            }


def curves(seconds: float) -> dict[str, list[tuple[float, int, float]]]:
    """Best makespan by (seconds, evaluations) of every method on one memory-tight batch."""
    problem = multimodal(8, 16, 7, laps=2, cap=2)
    found: dict[str, list[tuple[float, int, float]]] = {}
    for method in ("portfolio", "mcts", "random", "dfs"):
        result = solve(problem, budget=seconds, method=method)
        found[method] = [*result.curve, (result.seconds, result.evaluations, result.makespan)]
    return found
