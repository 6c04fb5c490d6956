"""A layout's predicted iteration: sample batches balanced, placed and scheduled in a compiled loop.

The schedule is the dual-queue interleaving with whole microbatches admitted, as many as memory holds of the heaviest
one. It leaves out what only a run's planner has: cutting instances further, other orders, a strategy for each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum, inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ds_dip.costs.strategies import STRATEGIES, share
from ds_dip.data import SampleMetadata
from ds_dip.models.partition import Partition
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import DISAGGREGATED, Layout
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

    ``makespans`` are those of the slowest replica of every batch. ``bubble`` is the share of all GPUs' time without
    work. ``state`` and ``activations`` are by the partition's ranks, the latter for the data's heaviest batch.
    ``short`` says whether microbatches waited for memory.
    """

    layout: Layout
    partition: Partition
    makespans: tuple[float, ...]
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


class _Group(NamedTuple):
    """One group's simulated batch: seconds, GPU-seconds of work, and microbatches in flight."""

    makespan: float
    work: float
    ending: float
    total: float
    most: int
    fullest: int


class _Stages(NamedTuple):
    """A group's batch: (microbatches, stages) seconds and ranks as ``kernels.simulate`` takes them."""

    forward: Floats
    backward: Floats
    delay: Floats
    rank: npt.NDArray[np.int64]
    replica: npt.NDArray[np.int64]


class Simulator:
    """Predicts layouts on the same sample batches; what several layouts share is computed once.

    ``cutter`` says where a layout's layers live, ours where it is left out. Not ``balanced``, samples go to replicas
    and microbatches in turn.
    """

    def __init__(
        self,
        job: Job,
        batches: Sequence[Sequence[SampleMetadata]],
        *,
        cutter: Callable[[Job, Layout], Partition] = partition_of,
        balanced: bool = True,
    ) -> None:
        self.job, self.batches = job, tuple(tuple(batch) for batch in batches)
        self._cutter, self._balanced = cutter, balanced
        self.used = 0
        self._partitions: dict[tuple[object, ...], Partition] = {}
        self._cuts: dict[tuple[int, int, int], tuple[Batch, ...]] = {}
        self._rooms = Rooms(job, lambda layout: self.cut(layout, -1))
        self._shares: dict[tuple[str, int], float] = {}
        #: By the identity of a batch, which lives as long as its cut.
        self._rows: dict[tuple[int, str, int], tuple[npt.NDArray[np.bool_], Floats, Floats]] = {}
        self._messages: dict[tuple[object, ...], Floats] = {}

    def predict(
        self, layout: Layout, *, batches: int | None = None, every: bool = True, limit: float = inf
    ) -> Prediction | None:
        """The prediction on the first ``batches``, or None as soon as their mean cannot be below ``limit`` seconds.

        Not ``every``, only the replica with most work is simulated for each batch, and the heaviest batch only where
        that tells whether memory is short; ``activations`` are then the most that may be in flight.
        Raises UnfitError where the layout does not hold the heaviest batch of the data.
        """
        number = len(self.batches) if batches is None else batches
        partition = self.partition(layout)
        room = self.room(layout, partition)
        run = _Run(self, layout, partition, room)
        makespans: list[float] = []
        parts: list[Parts] = []
        work = span = 0.0
        short = False
        for step in range(number):
            groups = self.cut(layout, step)
            groups = groups if every else groups[:1]
            left = limit * number - fsum(makespans)
            # The bound takes a fraction of the schedule's time.
            if any(run.least(batch) >= left for batch in groups):
                return None
            found = [run.group(batch) for batch in groups]
            slowest, mean = max(own.makespan for own in found), fsum(own.makespan for own in found) / len(found)
            makespans.append(slowest)
            if fsum(makespans) >= limit * number:
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
        return Prediction(
            layout, partition, tuple(makespans), Parts(*each), 1 - work / span if span else 0.0, room.state,
            activations, short,
        )  # fmt: skip

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
        output = self.job.model.module(module).layers[layer].output
        key = id(batch), module, output, tensor
        if key not in self._messages:
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


class _Run:
    """One layout on a simulator's batches."""

    def __init__(self, simulator: Simulator, layout: Layout, partition: Partition, room: Room) -> None:
        self.simulator, self.layout, self.partition, self.room = simulator, layout, partition, room
        self.job = job = simulator.job
        self.own, self.meshes = Pipelines.of(layout), layout.meshes(job.model)
        self.apart = layout.placement == DISAGGREGATED
        self.last = job.model.loss_module
        #: Encoder replicas that work on the same microbatch, each on its part, count as one.
        self.sets = max(1, self.own.encoders // self.own.pieces)
        self.deep = layout.encoder.pipeline if self.apart else 0
        self.ranks = self.sets * self.deep + self.own.backbones * layout.backbone.pipeline
        like = [*range(self.deep)] * self.sets + [*range(self.deep, partition.ranks)] * self.own.backbones
        devices = [layout.encoder.tensor * self.own.encoders / self.sets] * (self.sets * self.deep)
        devices += [float(layout.backbone.tensor)] * (self.own.backbones * layout.backbone.pipeline)
        self.devices, self.gpus = np.array(devices), float(sum(devices))
        tails = tails_of(job, layout, partition)
        self.tails = np.array([tails[rank] for rank in like])
        self.entry = sum(chunk.module != self.last for chunk in partition.chunks) if self.apart else 0
        chunks = {module.name: partition.of(module.name) for module in job.model.modules}
        self.chunks = chunks
        self.kinds = {
            name: np.array([job.costs(self.meshes[name].tensor).kinds(name, c.start, c.stop) for c in own])
            for name, own in chunks.items()
        }
        self._known: dict[int, _Stages] = {}

    def least(self, batch: Batch) -> float:
        """Seconds that no order of one group's batch is below.

        Of every rank what comes before its first stage, its work, and what comes behind its last one.
        """
        own = self._stages(batch)
        forward, backward = np.maximum(own.forward, 0.0), np.maximum(own.backward, 0.0)
        delay = np.where(own.forward < 0.0, 0.0, own.delay)
        place = own.rank.ravel()
        work = np.bincount(place, (forward + backward).ravel(), self.ranks)
        head, tail = np.full(self.ranks, inf), np.full(self.ranks, inf)
        np.minimum.at(head, place, _before(forward, delay).ravel())
        np.minimum.at(tail, place, _before(backward, delay).ravel())
        some = np.isfinite(head)
        return float((head + work + np.maximum(tail, self.tails))[some].max(initial=0.0))

    def group(self, batch: Batch) -> _Group:
        """One group's batch."""
        from ds_dip.parallelism import kernels

        self.simulator.used += 1
        forward, backward, delay, rank, replica = self._stages(batch)
        busy, end = np.zeros(self.ranks), np.zeros(self.ranks)
        most, fullest = kernels.simulate(
            forward, backward, delay, rank, self.entry, replica, self.own.backbones, self.room.admitted,
            self.room.entered, busy, end,
        )  # fmt: skip
        busiest = int(np.argmax(busy + self.tails))
        return _Group(
            float((end + self.tails).max()), float(busy[busiest]), float(self.tails[busiest]),
            float(busy @ self.devices), int(most), int(fullest),
        )  # fmt: skip

    def is_full(self, own: _Group) -> bool:
        """Whether as many microbatches were in flight as memory holds."""
        return own.most >= self.room.admitted or own.fullest >= self.room.entered

    def may_be_full(self, batch: Batch) -> bool:
        """Whether a group's batch has as many microbatches as memory holds."""
        count = len(batch.microbatches)
        return count >= self.room.admitted or -(-count // self.own.backbones) >= self.room.entered

    def held(self, own: _Group) -> tuple[float, ...]:
        """Bytes of activations on every rank of the partition with so many of the heaviest microbatch in flight."""
        return self._held(own.most, own.fullest)

    def most(self, batch: Batch) -> tuple[float, ...]:
        """The same with as many in flight as there are, or as memory holds."""
        count = len(batch.microbatches)
        entered = min(self.room.entered, -(-count // self.own.backbones))
        return self._held(min(count, self.room.admitted), entered)

    def _held(self, most: int, fullest: int) -> tuple[float, ...]:
        found = []
        for rank, each in enumerate(self.room.each):
            flying = fullest if self.apart and rank >= self.deep else -(-most // self.sets)
            found.append(flying * each + self.room.beside[rank])
        return tuple(found)

    def _stages(self, batch: Batch) -> _Stages:
        if id(batch) not in self._known:
            forward, backward, delay = self._seconds(batch)
            count = len(batch.microbatches)
            replica = np.arange(count) % self.own.backbones
            rank = np.array([[chunk.rank for chunk in self.partition.chunks]] * count, dtype=np.int64)
            if self.apart:
                first, behind = self.entry, (self.sets - 1) * self.deep
                rank[:, :first] += (np.arange(count) % self.sets * self.deep)[:, None]
                rank[:, first:] += (behind + replica * self.layout.backbone.pipeline)[:, None]
            self._known[id(batch)] = _Stages(forward, backward, delay, rank, replica)
        return self._known[id(batch)]

    def _seconds(self, batch: Batch) -> tuple[Floats, Floats, Floats]:
        """(microbatches, stages) seconds of forwards, backwards, and messages behind; -1 where there is no stage."""
        model = self.job.model
        forwards, backwards, delays = [], [], []
        for module in model.modules:
            name, chunks, kinds = module.name, self.chunks[module.name], self.kinds[module.name]
            tensor = self.meshes[name].tensor
            parted = self.own.encoders / self.sets if self.apart and name != self.last else 1.0
            there, base, each = self.simulator.rows(batch, name, tensor)
            layers = each[:, 0] @ kinds.T
            forward, backward = base[:, :1] + layers / parted, base[:, 1:2] + each[:, 1] @ kinds.T / parted
            if self.layout.strategy != STRATEGIES[0]:
                again = self.simulator.again(name, self.layout.strategy, tensor)
                backward += each[:, 0] @ (kinds * again).T / parted
            forwards.append(np.where(there, forward, -1.0))
            backwards.append(np.where(there, backward if model.backward(name) else -1.0, -1.0))
            ends = [chunk.stop - 1 for chunk in chunks]
            # What leaves the module takes as long as the side with fewer devices needs.
            own = [self.simulator.messages(batch, name, end, tensor) for end in ends[:-1]]
            sides = {tensor, self.layout.backbone.tensor}
            own.append(np.max([self.simulator.messages(batch, name, ends[-1], side) for side in sides], axis=0))
            delays.append(np.array(own).T)
        ranks = np.array([chunk.rank for chunk in self.partition.chunks])
        delay = np.concatenate(delays, axis=1)
        delay[:, :-1] *= ranks[1:] != ranks[:-1]
        return np.concatenate(forwards, axis=1), np.concatenate(backwards, axis=1), delay


def _before(seconds: Floats, delay: Floats) -> Floats:
    """(microbatches, stages): seconds of all earlier stages and of the messages between them."""
    found = np.zeros_like(seconds)
    np.cumsum((seconds + delay)[:, :-1], axis=1, out=found[:, 1:])
    return found


def tails_of(job: Job, layout: Layout, partition: Partition) -> tuple[float, ...]:
    """Seconds that every rank of the partition needs after its last backward; none where that is not known."""
    if job.cluster.ending is None:
        return (0.0,) * partition.ranks
    held, meshes = [0] * partition.ranks, layout.meshes(job.model)
    replicas = [1] * partition.ranks
    for chunk in partition.chunks:
        mesh = meshes[chunk.module]
        replicas[chunk.rank] = mesh.data
        if not job.model.module(chunk.module).frozen:
            held[chunk.rank] += job.elements(chunk.module, mesh.tensor, chunk.start, chunk.stop)
    endings = {own: job.ending(own) for own in set(replicas)}
    found = []
    for elements, own in zip(held, replicas, strict=True):
        ending = endings[own]
        assert ending is not None
        found.append(ending.seconds(elements))
    return tuple(found)
