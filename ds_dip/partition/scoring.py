"""A candidate's predicted iteration: its sample batches planned and scheduled as a run would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from math import fsum, inf

from ds_dip.costs.ending import Ending, rank_tails
from ds_dip.costs.model import CostModel
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Model, Sizes
from ds_dip.partition.memory import Memory
from ds_dip.partition.workload import Workload
from ds_dip.planning import build_problem, cut
from ds_dip.planning.batch import Batch, Microbatch
from ds_dip.scheduling import (
    BaselineError,
    InfeasibleError,
    Problem,
    ProblemError,
    Schedule,
    Timeline,
    lower_bound,
)

#: How the run makes a schedule: (name, order, times), as ``planner.ordering.fastest`` does.
Scheduler = Callable[[Problem], tuple[str, Schedule, Timeline]]
#: A batch of more stages than this is not planned while the one before it runs.
MOST_STAGES = 20_000
_NOTHING = Sizes((), ())


class UnfitError(ValueError):
    """A candidate that cannot run: the message says on which rank, and the numbers."""


@dataclass(frozen=True, slots=True)
class Score:
    """A candidate and its sample batches' predictions; seconds and bytes.

    ``makespans`` holds, for every batch, that of the slowest replica, ``bounds`` the lower bound of the
    same replica's schedule. ``bubble`` is the share of the ranks' time without work. ``state`` and
    ``activations`` are bytes a rank, the latter the largest peak of any batch.
    """

    partition: Partition
    split: str
    makespans: tuple[float, ...]
    bounds: tuple[float, ...]
    bubble: float
    state: tuple[float, ...]
    activations: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Seconds of the mean batch."""
        return fsum(self.makespans) / len(self.makespans)

    @property
    def gap(self) -> float:
        """How far the mean batch is above its lower bound, as a share of at least 0."""
        bound = fsum(self.bounds)
        # The same seconds summed in another order may come out a little less.
        return max(0.0, fsum(self.makespans) / bound - 1) if bound else 0.0


class Scorer:
    """Scores candidates on one workload; what does not depend on the candidate is computed once.

    ``ending``, where it is known, is what follows a rank's last backward. Every stage has a choice of the memory
    ``strategies`` that the run has, and a batch ``most_stages`` at most. ``used`` counts the schedules made.
    """

    def __init__(
        self,
        model: Model,
        workload: Workload,
        costs: CostModel,
        scheduler: Scheduler,
        memory: Memory | None = None,
        ending: Ending | None = None,
        strategies: Sequence[str] = STRATEGIES[:1],
        most_stages: int = MOST_STAGES,
    ) -> None:
        self.model, self.workload, self.costs = model, workload, Remembered(costs)
        self.memory, self.ending, self.strategies = memory or Memory(), ending, tuple(strategies)
        self.used, self._most_stages = 0, most_stages
        self._scheduler = scheduler
        self._shares = workload.shares(model, self.costs)
        self._cuts: dict[tuple[tuple[str, int | None], ...], tuple[tuple[Batch, ...], ...]] = {}

    def by(self, scheduler: Scheduler) -> Scorer:
        """A scorer of the same batches and costs that schedules in another way."""
        other = copy(self)
        other._scheduler, other.used = scheduler, 0
        return other

    def keeping(self) -> Scorer:
        """A scorer of the same batches and costs where every stage keeps all that it needs."""
        other = copy(self)
        other.strategies, other.used = STRATEGIES[:1], 0
        return other

    def batches(self, partition: Partition) -> tuple[tuple[Batch, ...], ...]:
        """Every sample batch as its replicas run it, cut as the partition's B says."""
        key = partition.sub_microbatch
        if key not in self._cuts:
            self._cuts[key] = tuple(
                tuple(
                    cut(step, batch, share, self.model, partition, loss=self.workload.loss) for share in shares if share
                )
                for step, (batch, shares) in enumerate(zip(self.workload.batches, self._shares, strict=True))
            )
        return self._cuts[key]

    def microbatches(self, partition: Partition) -> list[Microbatch]:
        """All microbatches of all sample batches."""
        return [own for replicas in self.batches(partition) for batch in replicas for own in batch.microbatches]

    def layer_seconds(self, partition: Partition) -> dict[str, list[float]]:
        """Seconds that every layer works in a mean batch of one replica, by module, under the partition's B."""
        microbatches = self.microbatches(partition)
        count = sum(map(len, self.batches(partition)))
        return {
            module.name: [
                fsum(self._stages(Chunk(module.name, 0, 0, 0, layer, layer + 1), microbatches)) / count
                for layer in range(len(module.layers))
            ]
            for module in self.model.modules
        }

    def least(self, partition: Partition) -> tuple[float, ...]:
        """A lower bound of every batch's makespan that needs no schedule: the most work on one rank."""
        found = []
        for replicas in self.batches(partition):
            busiest = 0.0
            for batch in replicas:
                work = [0.0] * partition.ranks
                for chunk in partition.chunks:
                    work[chunk.rank] += fsum(self._stages(chunk, batch.microbatches))
                busiest = max(busiest, *work)
            found.append(busiest)
        return tuple(found)

    def score(self, partition: Partition, split: str = "", limit: float = inf) -> Score | None:
        """The score, or None as soon as the mean cannot be below ``limit`` seconds.

        Raises UnfitError where the candidate does not fit into memory or cannot be scheduled.
        """
        state, capacity = self.memory.state(self.model, partition), self.capacity(partition)
        least, batches = self.least(partition), self.batches(partition)
        stages = 2 * max(sum(self._count(own, partition) for own in batch.microbatches) for r in batches for batch in r)
        if stages > self._most_stages:
            raise UnfitError(
                f"a batch has {stages} stages, more than the {self._most_stages} that can be planned in time"
            )
        limit = limit * len(batches) * (1 - 1e-12)
        makespans: list[float] = []
        bounds: list[float] = []
        activations = [0.0] * partition.ranks
        work = span = 0.0
        for step, replicas in enumerate(batches):
            if fsum(makespans) + fsum(least[step:]) >= limit:
                return None
            slowest = bound = 0.0
            for batch in replicas:
                problem, timeline = self._schedule(batch, partition, capacity)
                activations = list(map(max, activations, timeline.peak_memory))
                work += fsum(task.duration for task in problem.tasks)
                if timeline.makespan >= slowest:
                    slowest, bound = timeline.makespan, lower_bound(problem)[0]
            span += slowest * len(replicas)
            makespans.append(slowest)
            bounds.append(bound)
        if fsum(makespans) >= limit:
            return None
        bubble = 1 - work / (span * partition.ranks) if span else 0.0
        return Score(partition, split, tuple(makespans), tuple(bounds), bubble, state, tuple(activations))

    def _schedule(
        self, batch: Batch, partition: Partition, capacity: Sequence[float | None]
    ) -> tuple[Problem, Timeline]:
        tails = None
        if self.ending is not None:
            tails = rank_tails(self.model, partition, self.ending, self.memory.parallel.degree)
        problem = build_problem(
            batch,
            self.model,
            partition,
            self.costs,
            compute=self.memory.compute,
            memory_capacity=capacity,
            strategies=self.strategies,
            tails=tails,
            parallel=self.memory.parallel,
        )
        self.used += 1
        try:
            return problem, self._scheduler(problem)[2]
        except (InfeasibleError, ProblemError, BaselineError) as error:
            raise UnfitError(f"batch {batch.step}: {error}") from error

    def capacity(self, partition: Partition) -> tuple[float | None, ...]:
        """Bytes for activations on every rank, None where there is no limit.

        Raises UnfitError where nothing is left for them.
        """
        state = self.memory.state(self.model, partition)
        message = max(
            spec.bytes(sizes, self.memory.compute)
            for microbatch in self.microbatches(partition)
            for chunk in partition.chunks
            for sub in range(len(microbatch.subs[chunk.module]))
            for sizes in [microbatch.sub_sizes(chunk.module, sub)]
            for spec in self.model.module(chunk.module).layers[chunk.stop - 1].output
        )
        left = tuple(self.memory.activations(rank, held, message) for rank, held in enumerate(state))
        for rank, (held, own) in enumerate(zip(state, left, strict=True)):
            if own is not None and own <= 0:
                assert self.memory.bytes is not None
                raise UnfitError(
                    f"rank {rank} holds {held / 1e9:.3g} GB of parameters, gradients and optimizer state, which leaves "
                    f"nothing of {self.memory.bytes / 1e9:.3g} GB for activations"
                )
        return left

    @staticmethod
    def _count(microbatch: Microbatch, partition: Partition) -> int:
        return sum(len(microbatch.subs[chunk.module]) for chunk in partition.chunks)

    def _stages(self, chunk: Chunk, microbatches: Sequence[Microbatch]) -> list[float]:
        """Seconds of a chunk's forward and backward for every sub-microbatch."""
        backward = self.model.backward(chunk.module)
        found = []
        for microbatch in microbatches:
            for sub in range(len(microbatch.subs[chunk.module])):
                where = (chunk.module, chunk.start, chunk.stop, microbatch.sub_sizes(chunk.module, sub))
                found.append(self.costs.forward(*where) + (self.costs.backward(*where) if backward else 0.0))
        return found


class Remembered:
    """A cost model that computes each cost once."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._known: dict[tuple[str, str, int, int, Sizes], float] = {}

    def _value(self, kind: str, module: str, start: int, stop: int, sizes: Sizes) -> float:
        key = kind, module, start, stop, sizes
        if key not in self._known:
            self._known[key] = getattr(self._costs, kind)(module, start, stop, sizes)
        return self._known[key]

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the forward."""
        return self._value("forward", module, start, stop, sizes)

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the backward."""
        return self._value("backward", module, start, stop, sizes)

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Bytes kept until the backward."""
        return self._value("activation_bytes", module, start, stop, sizes)

    def transfer(self, bytes: float) -> float:
        """Seconds of a transfer."""
        return self._costs.transfer(bytes)
