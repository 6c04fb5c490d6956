"""A portfolio of local searches in rounds: seeds, priorities decoded in both directions, orders annealed.

Every round gives each worker a job; results are merged in the order of the workers, so a search is
reproducible for a seed, a number of workers and an evaluation budget.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.graph import Ints32
from ds_dip.scheduling.jobs import (
    DECODE_COST,
    FIRST_JOB,
    LONGEST_JOB,
    REORDER_COST,
    Found,
    decode,
    reorder,
    restrategize,
    rewind,
    seed_orders,
)

ELITE = 6
WINDOW = 200
"""Tasks in the smallest window that is annealed on its own; larger ones have up to four times as many."""
Progress = Callable[[float, float, int, float], None]
"""Called with the best makespan, the bound, evaluations and seconds so far; may raise Stop."""


class Stop(Exception):  # noqa: N818  # it is no error: the search ends with the best so far
    """Raised by a progress callback to end the search."""


@dataclass(slots=True)
class Budget:
    """What a search may use: seconds from ``began``, evaluations, either or both."""

    seconds: float | None
    evaluations: int | None
    began: float
    used: int = 0

    def elapsed(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.began

    def over(self) -> bool:
        """Whether nothing is left."""
        spent = self.seconds is not None and self.elapsed() >= self.seconds
        return spent or (self.evaluations is not None and self.used >= self.evaluations)

    def left(self, cost: float) -> int:
        """Evaluations left at ``cost`` seconds each."""
        left = 2**40 if self.evaluations is None else self.evaluations - self.used
        if self.seconds is not None:
            left = min(left, int((self.seconds - self.elapsed()) / cost))
        return max(0, left)


@dataclass(slots=True)
class Pool:
    """The best distinct sequences so far, best first, and every improvement of the best."""

    budget: Budget
    elite: list[tuple[float, Ints32, tuple[int, ...]]] = field(default_factory=list)
    curve: list[tuple[float, int, float]] = field(default_factory=list)

    def add(self, makespan: float, sequence: Ints32, choices: tuple[int, ...]) -> bool:
        """Keep a sequence if it is good and new; True where it is the best so far."""
        if not np.isfinite(makespan):
            return False
        better = not self.elite or makespan < self.elite[0][0] * (1 - 1e-12)
        known = any(makespan == entry[0] and np.array_equal(sequence, entry[1]) for entry in self.elite)
        if not known:
            self.elite.append((makespan, sequence.copy(), choices))
            self.elite.sort(key=lambda entry: entry[0])
            del self.elite[ELITE:]
        if better:
            self.curve.append((self.budget.elapsed(), self.budget.used, makespan))
        return better

    @property
    def best(self) -> float:
        """The best makespan."""
        return self.elite[0][0] if self.elite else np.inf


class Portfolio:
    """One search over orders, and over the choices of pairs where there are any.

    ``arrays`` are the problem's own; ``start`` the choices of pairs to begin with, all feasible.
    """

    def __init__(self, arrays: Arrays, pool: Pool, bound: float, seed: int, start: list[tuple[int, ...]]) -> None:
        self.arrays, self.pool, self.bound, self.start = arrays, pool, bound, start
        self.random = random.Random(seed)
        self.ways = {"orders": 1.0, "forward": 1.0, "backward": 1.0}
        if arrays.n > 2 * WINDOW:
            self.ways["window"] = 1.0
        if any(len(pair.choices) > 1 for pair in arrays.problem.pairs):
            self.ways["strategies"] = 1.0
        self.priorities: dict[bool, tuple[float, Ints32]] = {}
        self.rounds = 0
        for backwards in (False, True):
            for choices in start:
                orders = seed_orders(arrays.with_choices(choices), backwards)
                for order in orders if choices == start[0] else orders[:1]:
                    self._seed(choices, backwards, order)
        if True not in self.priorities:
            del self.ways["backward"]

    def _seed(self, choices: tuple[int, ...], backwards: bool, order: Ints32) -> None:
        found = decode(self.arrays, choices, backwards, order, 1, 1.0, 1.0, 0.0, 0)
        self.pool.budget.used += found.evaluations
        if not np.isfinite(found.makespan):
            return
        self.pool.add(found.makespan, found.sequence, choices)
        if backwards not in self.priorities or found.makespan < self.priorities[backwards][0]:
            self.priorities[backwards] = (found.makespan, order)

    def run(self, workers: int, progress: Progress | None) -> None:
        """Search until the budget is over or the bound is reached."""
        budget = self.pool.budget
        with ThreadPoolExecutor(workers) as threads:
            while not budget.over() and self.pool.best > self.bound * (1 + 1e-9) and self.arrays.n > 1:
                jobs = [self._job(place, workers) for place in range(workers)]
                for (way, _), found in zip(jobs, threads.map(_run, jobs), strict=True):
                    budget.used += found.evaluations
                    self._merge(way, found)
                self.rounds += 1
                if progress:
                    progress(self.pool.best, self.bound, budget.used, budget.elapsed())

    def _job(self, place: int, workers: int) -> Job:
        """The next job: every way once, then those that lately brought more the more often."""
        turn = self.rounds * workers + place
        way = self.random.choices(list(self.ways), list(self.ways.values()))[0]
        if turn < len(self.ways):
            way = list(self.ways)[turn]
        share = min(LONGEST_JOB, FIRST_JOB * 1.1**self.rounds, (self.pool.budget.seconds or 8.0) / 8)
        seed = self.random.getrandbits(62)
        arrays, elite = self.arrays, self.pool.elite
        scale, target = self.pool.best, self.bound * (1 + 1e-9)
        chosen = elite[0] if way in ("orders", "window") else self.random.choice(elite)
        if way == "strategies":
            return way, lambda: restrategize(arrays, chosen[1], chosen[2])
        if way in ("forward", "backward"):
            count = self._count(share, DECODE_COST * arrays.n + 1e-6, workers)
            backwards = way == "backward"
            start = self.priorities[backwards][1]
            heat = self.random.choice((0.001, 0.003, 0.01)) * scale
            choices = self.random.choice([elite[0][2], chosen[2], *self.start])
            return way, lambda: decode(arrays, choices, backwards, start, count, heat, heat / 20, target, seed)
        count = self._count(share, REORDER_COST * arrays.n + 3e-7, workers)
        heat = self.random.choice((0.005, 0.01, 0.02, 0.03)) * scale
        swaps = self.random.choice((10, 100, 300))
        cold = heat / 10
        if way == "window":
            tasks = WINDOW * self.random.choice((1, 2, 4))
            count = self._count(share, REORDER_COST * tasks + 3e-7, workers)
            heat, cold = heat * tasks / arrays.n, cold * tasks / arrays.n
            return way, lambda: rewind(arrays, chosen[1], chosen[2], tasks, count, heat, cold, target, swaps, seed)
        return way, lambda: reorder(arrays, chosen[1], chosen[2], count, heat, cold, target, swaps, seed)

    def _count(self, share: float, cost: float, workers: int) -> int:
        left = self.pool.budget.left(cost)
        if self.pool.budget.evaluations is not None:
            left = min(left, (self.pool.budget.evaluations - self.pool.budget.used) // workers)
        return max(1, min(left, int(share / cost) + 1))

    def _merge(self, way: str, found: Found) -> None:
        before = self.pool.best
        better = self.pool.add(found.makespan, found.sequence, found.choices)
        if found.bundles is not None:
            backwards = way == "backward"
            if found.makespan < self.priorities[backwards][0]:
                self.priorities[backwards] = (found.makespan, found.bundles)
        gain = 1.0 + 100 * (before / self.pool.best - 1) if better else 0.0
        self.ways[way] = max(0.15, 0.85 * self.ways[way] + 0.3 * gain)


Job = tuple[str, Callable[[], Found]]


def _run(job: Job) -> Found:
    return job[1]()
