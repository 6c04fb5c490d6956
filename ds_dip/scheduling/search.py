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
    together,
)

ELITE = 6
WINDOW = 200
"""Tasks in the smallest window that is annealed on its own; larger ones have up to three times as many."""
WINDOW_EVALUATIONS = 20_000
"""Schedules of a window that are scored at most before another one has its turn."""
HEATS = (0.01, 0.02, 0.03)
"""Temperatures that annealing of orders starts from, as shares of the makespan."""
GROWTH = 0.3
"""A job's length as a share of what the search has taken so far: restarts become longer."""
PROGRAM_COST = 5e-3
"""Seconds of a rank's integer program, about."""
MOST_ORDERED = 5_000
"""Tasks up to which whole orders are annealed; above, windows bring far more a second."""
PROMISING = 1.1
"""Choices of pairs whose first orders are longer than this, by the best makespan then, are not tried with others."""
LEAST_SHARE = 0.05
"""Share of the time, about, of a way that lately brought nothing."""
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
        self.ways = {name: Way() for name in ("orders", "forward", "backward")}
        if arrays.n > MOST_ORDERED:
            del self.ways["orders"]
        if arrays.n > 2 * WINDOW:
            self.ways["window"] = Way()
        if any(len(pair.choices) > 1 for pair in arrays.problem.pairs):
            self.ways["strategies"] = Way()
        self.priorities: dict[bool, tuple[float, Ints32]] = {}
        self.begun: dict[tuple[int, ...], float] = {}
        self.rounds = 0
        self.spent = 0.0
        seeds = [(backwards, choices) for choices in start for backwards in (False, True)]
        for backwards, choices in seeds:
            self._seed(choices, backwards, seed_orders(arrays.with_choices(choices), backwards)[0])
        # What began far behind is not drawn again, and the other orders are only for the choices that began best.
        self.start = [choices for choices in start if self.begun.get(choices, np.inf) <= PROMISING * pool.best] or start
        best = pool.elite[0][2] if pool.elite else start[0]
        for backwards in (False, True):
            for order in seed_orders(arrays.with_choices(best), backwards)[1:]:
                self._seed(best, backwards, order)
        if True not in self.priorities:
            del self.ways["backward"]

    def _seed(self, choices: tuple[int, ...], backwards: bool, order: Ints32) -> None:
        if self.priorities and not self.pool.budget.left(DECODE_COST * self.arrays.n):
            return
        found = decode(self.arrays, choices, backwards, order, 1, 1.0, 1.0, 0.0, 0)
        self.pool.budget.used += found.evaluations
        if not np.isfinite(found.makespan):
            return
        self.begun[choices] = min(found.makespan, self.begun.get(choices, np.inf))
        self.pool.add(found.makespan, found.sequence, choices)
        if backwards not in self.priorities or found.makespan < self.priorities[backwards][0]:
            self.priorities[backwards] = (found.makespan, order)

    def run(self, workers: int, progress: Progress | None) -> None:
        """Search until the budget is over or the bound is reached."""
        budget = self.pool.budget
        with ThreadPoolExecutor(workers) as threads:
            while not budget.over() and self.pool.best > self.bound * (1 + 1e-9) and self.arrays.n > 1:
                _, sequence, choices = self.pool.elite[0]
                jobs = self._jobs(workers)
                windows = []
                for (way, _), found in zip(jobs, threads.map(_run, jobs), strict=True):
                    self._merge(way, found)
                    if found.places is not None:
                        windows.append(found)
                if len(windows) > 1:
                    self._merge("window", together(self.arrays.with_choices(choices), sequence, windows))
                self.rounds += 1
                if progress:
                    progress(self.pool.best, self.bound, budget.used, budget.elapsed())

    def _jobs(self, workers: int) -> list[Job]:
        """A job a worker: every way once, then each the more often the more it lately brought a second."""
        total = sum(way.rate() for way in self.ways.values())
        weights = [(LEAST_SHARE + way.rate() / total if total else 1.0) / way.cost for way in self.ways.values()]
        names = self.random.choices(list(self.ways), weights, k=workers)
        for place in range(workers):
            turn = self.rounds * workers + place
            if turn < len(self.ways):
                names[place] = list(self.ways)[turn]
        slots = iter(self.random.sample(range(names.count("window")), names.count("window")))
        start = self.random.random()
        jobs = []
        for name in names:
            spot = (start + next(slots) / names.count("window")) % 1.0 if name == "window" else 0.0
            jobs.append(self._job(name, spot, workers))
        return jobs

    def _job(self, way: str, spot: float, workers: int) -> Job:
        share = min(LONGEST_JOB, max(FIRST_JOB, GROWTH * self.spent), (self.pool.budget.seconds or 8.0) / 8)
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
            choices = self.random.choice([*[elite[0][2], chosen[2]] * len(self.start), *self.start])
            return way, lambda: decode(arrays, choices, backwards, start, count, heat, heat / 20, target, seed)
        swaps = self.random.choice((10, 100, 300))
        if way == "window":
            tasks = WINDOW * self.random.choice((1, 2, 3))
            share = min(share, WINDOW_EVALUATIONS * REORDER_COST * tasks)
            count = self._count(share, REORDER_COST * tasks + 3e-7, workers)
            heat = self.random.choice((0.005, 0.01, 0.02)) * scale * tasks / arrays.n
            first = int(spot * arrays.n)
            return way, lambda: rewind(
                arrays, chosen[1], chosen[2], first, tasks, count, heat, heat / 10, target, swaps, seed
            )
        count = self._count(share, REORDER_COST * arrays.n + 3e-7, workers)
        heat = self.random.choice(HEATS) * scale
        return way, lambda: reorder(arrays, chosen[1], chosen[2], count, heat, heat / 10, target, swaps, seed)

    def _count(self, share: float, cost: float, workers: int) -> int:
        left = self.pool.budget.left(cost)
        if self.pool.budget.evaluations is not None:
            left = min(left, (self.pool.budget.evaluations - self.pool.budget.used) // workers)
            left = min(left, self.pool.budget.evaluations // 8 + 1)
        return max(1, min(left, int(share / cost) + 1))

    def _merge(self, way: str, found: Found) -> None:
        before = self.pool.best
        self.pool.budget.used += found.evaluations
        self.pool.add(found.makespan, found.sequence, found.choices)
        if found.bundles is not None:
            backwards = way == "backward"
            if found.makespan < self.priorities[backwards][0]:
                self.priorities[backwards] = (found.makespan, found.bundles)
        size = len(found.places) if found.places is not None else self.arrays.n
        cost = REORDER_COST if way in ("orders", "window") else DECODE_COST
        seconds = found.evaluations * cost * size if way != "strategies" else PROGRAM_COST * self.arrays.ranks
        self.spent += seconds
        self.ways[way].learn(before / self.pool.best - 1, seconds)


@dataclass(slots=True)
class Way:
    """What a way of searching lately brought (relative gains) and took (seconds, about)."""

    gain: float = 0.0
    spent: float = 0.0
    cost: float = 1e-3

    def learn(self, gain: float, seconds: float) -> None:
        """Count one more job; earlier ones count less and less."""
        self.gain, self.spent = 0.9 * self.gain + gain, 0.9 * self.spent + seconds
        self.cost = max(seconds, 1e-5)

    def rate(self) -> float:
        """Gain a second."""
        return self.gain / self.spent if self.spent else 0.0


Job = tuple[str, Callable[[], Found]]


def _run(job: Job) -> Found:
    return job[1]()
