"""A way to run a model's batches, tried on sampled ones: a partition, memory strategies, and how a batch is ordered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median

from ds_dip.costs.ending import rank_tails
from ds_dip.models.partition import Partition
from ds_dip.partition.scoring import Scorer, UnfitError
from ds_dip.planning import build_problem
from ds_dip.planning.batch import Batch
from ds_dip.planning.cut import PlanningError
from ds_dip.scheduling import (
    BaselineError,
    InfeasibleError,
    Problem,
    ProblemError,
    Schedule,
    ScheduleError,
    lower_bound,
    retime,
)

#: An order of a batch, with the problem that it is of: that given, or one with its backwards split.
Order = Callable[[Problem, Batch, Partition], tuple[Problem, Schedule]]


@dataclass(frozen=True)
class Way:
    """A schedule by name, on a partition that ``detail`` tells of; every stage chooses from ``strategies``."""

    name: str
    detail: str
    partition: Partition
    order: Order
    strategies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """What a way takes: for every batch, of its slowest replica, the makespan, its lower bound, and the bubble's share.

    ``memory`` is the most of activations that a rank holds in any batch, ``state`` the most of parameters, gradients
    and optimizer state; bytes. Where a batch cannot run so, ``reason`` says why and there is nothing else.
    """

    name: str
    detail: str
    makespans: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()
    bubbles: tuple[float, ...] = ()
    memory: float = 0.0
    state: float = 0.0
    reason: str = ""

    @property
    def makespan(self) -> float:
        """Seconds of the median batch."""
        return median(self.makespans)

    @property
    def mean(self) -> float:
        """Seconds of the mean batch."""
        return fsum(self.makespans) / len(self.makespans)

    @property
    def gap(self) -> float:
        """How far all batches together are above their lower bounds, as a share."""
        bound = fsum(self.bounds)
        return fsum(self.makespans) / bound - 1 if bound else 0.0


def problem_of(scorer: Scorer, batch: Batch, partition: Partition, strategies: Sequence[str]) -> Problem:
    """A batch's problem on a partition, within the scorer's memory; raises UnfitError where nothing is left of it."""
    tails = None
    if scorer.ending is not None:
        tails = rank_tails(scorer.model, partition, scorer.ending, scorer.memory.parallel.degree)
    return build_problem(
        batch,
        scorer.model,
        partition,
        scorer.costs,
        compute=scorer.memory.compute,
        memory_capacity=scorer.capacity(partition),
        strategies=strategies,
        tails=tails,
        parallel=scorer.memory.parallel,
    )


def tried(scorer: Scorer, way: Way) -> Trial:
    """A way on all of the scorer's batches."""
    makespans, bounds, bubbles, memory = [], [], [], 0.0
    try:
        for replicas in scorer.batches(way.partition):
            slowest = (-1.0, 0.0, 0.0)
            for batch in replicas:
                problem = problem_of(scorer, batch, way.partition, way.strategies)
                problem, schedule = way.order(problem, batch, way.partition)
                times = retime(problem, schedule)
                memory = max(memory, *times.peak_memory)
                work = fsum(times.end[task] - start for task, start in times.start.items())
                whole = times.makespan * problem.ranks
                slowest = max(slowest, (times.makespan, lower_bound(problem)[0], 1 - work / whole if whole else 0.0))
            makespans.append(slowest[0])
            bounds.append(slowest[1])
            bubbles.append(slowest[2])
    except (UnfitError, BaselineError, InfeasibleError, ProblemError, ScheduleError, PlanningError) as error:
        return Trial(way.name, way.detail, reason=str(error))
    state = max(scorer.memory.state(scorer.model, way.partition))
    return Trial(way.name, way.detail, tuple(makespans), tuple(bounds), tuple(bubbles), memory, state)


def describe(partition: Partition) -> str:
    """K and B of every module in a line."""
    limits, parts = dict(partition.sub_microbatch), []
    for name in dict.fromkeys(chunk.module for chunk in partition.chunks):
        limit = limits.get(name)
        size = f" B={limit}" if limit is not None else ""
        parts.append(f"{name} K={partition.of(name)[-1].segment + 1}{size}")
    return ", ".join(parts)
