"""A layout's predicted iteration: sample batches balanced, placed and scheduled in a compiled loop.

The schedule is the dual-queue interleaving with whole microbatches admitted, as many as memory holds of the heaviest
one. It leaves out what only a run's planner has: cutting instances further, other orders, a strategy for each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum, inf

import numpy as np
import numpy.typing as npt

from ds_dip.costs.strategies import STRATEGIES, share
from ds_dip.data import SampleMetadata
from ds_dip.models.partition import Partition
from ds_dip.parallelism.groups import Run
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import Layout
from ds_dip.parallelism.placing import Pipelines, batches_of, partition_of
from ds_dip.parallelism.pricing import Floats
from ds_dip.parallelism.room import Room, Rooms
from ds_dip.planning.batch import Batch


@dataclass(frozen=True, slots=True)
class Parts:
    """What the seconds of a mean iteration are made of; their sum is the iteration.

    ``work`` of the busiest rank, ``waiting`` of that rank, ``ending`` after its last backward (all in the mean
    replica), and how much ``longer`` the slowest replica takes.
    """

    work: float
    waiting: float
    ending: float
    longer: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A layout and what is predicted of it; seconds, and bytes of a GPU.

    ``makespans`` are those of the slowest replica of every batch, and ``bound`` the mean of what no order of the same
    stages is below. ``bubble`` is the share of all GPUs' time without work. ``state`` and ``activations`` are by the
    partition's ranks, the latter for the data's heaviest batch.
    ``short`` says whether microbatches waited for memory.
    """

    layout: Layout
    partition: Partition
    makespans: tuple[float, ...]
    bound: float
    parts: Parts
    bubble: float
    state: tuple[float, ...]
    activations: tuple[float, ...]
    short: bool

    @property
    def mean(self) -> float:
        """Seconds of the mean batch."""
        return fsum(self.makespans) / len(self.makespans)

    @property
    def memory(self) -> float:
        """Bytes of the fullest GPU for the heaviest batch."""
        return max(a + b for a, b in zip(self.state, self.activations, strict=True))


class Simulator:
    """Predicts layouts on the same sample batches; what several layouts share is computed once.

    ``cutter`` says where a layout's layers live, ours where it is left out. Not ``balanced``, samples go to replicas
    and microbatches in turn. ``fixed``, ranks run 1F1B in place of the interleaving.
    """

    def __init__(
        self,
        job: Job,
        batches: Sequence[Sequence[SampleMetadata]],
        *,
        cutter: Callable[[Job, Layout], Partition] = partition_of,
        balanced: bool = True,
        fixed: bool = False,
    ) -> None:
        self.job, self.batches = job, tuple(tuple(batch) for batch in batches)
        self._cutter, self._balanced, self.fixed = cutter, balanced, fixed
        self.used = 0
        self._partitions: dict[tuple[object, ...], Partition] = {}
        self._cuts: dict[tuple[int, int, int], tuple[Batch, ...]] = {}
        self._rooms = Rooms(job, lambda layout: self.cut(layout, -1))
        self._shares: dict[tuple[str, int], float] = {}
        #: By the identity of a batch, which lives as long as its cut.
        self._rows: dict[tuple[int, str, int], tuple[npt.NDArray[np.bool_], Floats, Floats]] = {}
        self._messages: dict[tuple[int, int, int], Floats] = {}
        #: Of the layout that was looked at last, what its batches take: memory strategies follow each other.
        self._last: tuple[Layout | None, dict[int, tuple[Floats, Floats, Floats]]] = None, {}
        #: A number of each layer's output that equal ones of a module share.
        self._outputs: dict[tuple[str, int], int] = {}
        self._specs: dict[tuple[object, ...], int] = {}

    def predict(
        self, layout: Layout, *, batches: int | None = None, every: bool = True, limit: float = inf
    ) -> Prediction | None:
        """The prediction on the first ``batches``, or None as soon as their mean cannot be below ``limit`` seconds.

        Not ``every``, only the replica with most work is simulated for each batch, and the heaviest batch only where
        that tells whether memory is short; ``activations`` are then the most that may be in flight.
        Raises UnfitError where the layout does not hold the heaviest batch of the data, PartitionError where its ranks
        cannot run 1F1B and shall.
        """
        number = len(self.batches) if batches is None else batches
        partition = self.partition(layout)
        room = self.room(layout, partition)
        run = Run(self, layout, partition, room)
        cuts = [self.cut(layout, step)[: None if every else 1] for step in range(number)]
        # Bounds take a fraction of the schedules' time.
        least = [max(map(run.least, groups)) for groups in cuts]
        if fsum(least) >= limit * number:
            return None
        makespans: list[float] = []
        parts: list[Parts] = []
        work = span = 0.0
        short = False
        for step, groups in enumerate(cuts):
            found = [run.group(batch) for batch in groups]
            slowest, mean = max(own.makespan for own in found), fsum(own.makespan for own in found) / len(found)
            makespans.append(slowest)
            if fsum([*makespans, *least[step + 1 :]]) >= limit * number:
                return None
            busy, ending = (fsum(getattr(own, n) for own in found) / len(found) for n in ("work", "ending"))
            parts.append(Parts(busy, mean - busy - ending, ending, slowest - mean))
            work += fsum(own.total for own in found)
            span += slowest * run.gpus * len(found)
            short = short or any(run.is_full(own) for own in found)
        heaviest = self.cut(layout, -1)[0]
        if every or (not short and run.may_be_full(heaviest)):
            flying = run.group(heaviest)
            short, activations = short or run.is_full(flying), run.held(flying)
        else:
            activations = run.most(heaviest)
        each = [fsum(getattr(own, name) for own in parts) / number for name in Parts.__slots__]
        bound, bubble = fsum(least) / number, 1 - work / span if span else 0.0
        return Prediction(
            layout, partition, tuple(makespans), bound, Parts(*each), bubble, room.state, activations, short
        )

    def least(self, layout: Layout) -> tuple[float, bool]:
        """Seconds that no order of the first batch's replica with most work is below, and whether memory may be short.

        Raises UnfitError as ``predict`` does.
        """
        partition, batch = self.partition(layout), self.cut(layout, 0)[0]
        run = Run(self, layout, partition, self.room(layout, partition))
        return run.least(batch), run.may_be_full(batch)

    def partition(self, layout: Layout) -> Partition:
        """Where a layout's layers live."""
        key = layout.placement, layout.encoder, layout.backbone, layout.microbatches, layout.laps
        if key not in self._partitions:
            self._partitions[key] = self._cutter(self.job, layout)
        return self._partitions[key]

    def cut(self, layout: Layout, step: int) -> tuple[Batch, ...]:
        """The groups' batches, that with most work first; step -1 is the heaviest batch of the data."""
        own = Pipelines.of(layout)
        key = step, own.groups, own.microbatches
        if key not in self._cuts:
            samples = self.job.heaviest if step < 0 else self.batches[step]
            partition = self.partition(layout)
            found = batches_of(self.job, layout, partition, max(step, 0), samples, balanced=self._balanced)

            def most(batch: Batch) -> float:
                return -fsum(
                    second for own in batch.microbatches for s in own.samples for second in self.job.load(s).seconds
                )

            self._cuts[key] = tuple(sorted(found, key=most))
        return self._cuts[key]

    def remembered(
        self, layout: Layout, batch: Batch, make: Callable[[Batch], tuple[Floats, Floats, Floats]]
    ) -> tuple[Floats, Floats, Floats]:
        """What ``make`` says of a batch, once for all memory strategies of a layout that follow each other."""
        plain = replace(layout, strategy=STRATEGIES[0])
        if self._last[0] != plain:
            self._last = plain, {}
        if id(batch) not in self._last[1]:
            self._last[1][id(batch)] = make(batch)
        return self._last[1][id(batch)]

    def room(self, layout: Layout, partition: Partition) -> Room:
        """What the ranks of a layout hold; UnfitError where they do not hold the heaviest microbatch."""
        return self._rooms.of(layout, partition)

    def rows(self, batch: Batch, module: str, tensor: int) -> tuple[npt.NDArray[np.bool_], Floats, Floats]:
        """Of every microbatch: (n, 1) whether it has instances, (n, 3) and (n, 3, kinds) costs as ``KindCosts.row``."""
        key = id(batch), module, tensor
        if key not in self._rows:
            sizes = [microbatch.sizes[module] for microbatch in batch.microbatches]
            found = [self.job.costs(tensor).row(module, own) for own in sizes]
            there = np.array([[len(own) > 0] for own in sizes])
            self._rows[key] = there, np.array([own[0] for own in found]), np.array([own[1] for own in found])
        return self._rows[key]

    def messages(self, batch: Batch, module: str, layer: int, tensor: int) -> Floats:
        """Seconds that a layer's output takes to another rank, of every microbatch."""
        place = module, layer
        if place not in self._outputs:
            output = self.job.model.module(module).layers[layer].output
            self._outputs[place] = self._specs.setdefault((module, output), len(self._specs))
        key = id(batch), self._outputs[place], tensor
        if key not in self._messages:
            output = self.job.model.module(module).layers[layer].output
            compute, costs = self.job.cluster.compute, self.job.costs(tensor)
            sizes = [microbatch.sizes[module] for microbatch in batch.microbatches]
            seconds = [costs.transfer(sum(spec.bytes(own, compute) for spec in output)) for own in sizes]
            self._messages[key] = np.array(seconds)
        return self._messages[key]

    def again(self, module: str, strategy: str, tensor: int) -> Floats:
        """The share of each kind of layer's forward that a backward runs again."""
        places = self.job.costs(tensor).representatives(module)
        if strategy != STRATEGIES[1]:
            return np.full(len(places), float(strategy == STRATEGIES[2]))
        found = []
        for place in places:
            if (module, place) not in self._shares:
                layer, sizes = self.job.model.module(module).layers[place], self.job.mean_point(module, 1.0)
                self._shares[module, place] = share(layer, sizes, self.job.cluster.compute) if len(sizes) else 0.0
            found.append(self._shares[module, place])
        return np.array(found)
