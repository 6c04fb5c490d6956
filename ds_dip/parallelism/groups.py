"""A layout on sample batches: the stages of every group of replicas, in seconds and ranks, and their schedule."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.partition import Partition
from ds_dip.parallelism.fixed import merged, runs_of, warm_ups
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import DISAGGREGATED, Layout
from ds_dip.parallelism.placing import Pipelines
from ds_dip.parallelism.pricing import Floats
from ds_dip.parallelism.room import Room
from ds_dip.partition.scoring import UnfitError
from ds_dip.planning.batch import Batch

if TYPE_CHECKING:
    from ds_dip.parallelism.simulation import Simulator


class Group(NamedTuple):
    """One group's simulated batch: seconds, GPU-seconds of work, and microbatches in flight."""

    makespan: float
    work: float
    ending: float
    total: float
    most: int
    fullest: int


class Stages(NamedTuple):
    """A group's batch: (microbatches, stages) seconds and ranks as ``kernels.simulate`` takes them."""

    forward: Floats
    backward: Floats
    delay: Floats
    rank: npt.NDArray[np.int64]
    replica: npt.NDArray[np.int64]


class Run:
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
        self._known: dict[int, Stages] = {}
        self.starts: list[int] = []
        if simulator.fixed:
            self.starts, self.warm = runs_of(partition), warm_ups(layout, self.sets)
            self._check_fixed()

    def least(self, batch: Batch) -> float:
        """Seconds that no order of one group's batch is below.

        Of every rank what comes before its first stage, its work, and what comes behind its last one. And where memory
        holds so many microbatches at once, these places share what all of them take from first stage to last.
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
        found = float((head + work + np.maximum(tail, self.tails))[some].max(initial=0.0))
        if self.starts:
            return found
        whole = float((forward + backward).sum())
        inside = (forward + backward)[:, self.entry :].sum(axis=1)
        replicas = np.bincount(own.replica, inside, self.own.backbones)
        return max(found, whole / self.room.admitted, float(replicas.max()) / self.room.entered)

    def group(self, batch: Batch) -> Group:
        """One group's batch."""
        from ds_dip.parallelism import kernels

        self.simulator.used += 1
        forward, backward, delay, rank, replica = self._stages(batch)
        busy, end = np.zeros(self.ranks), np.zeros(self.ranks)
        if self.starts:
            chain = merged(self.starts, forward, backward, delay)
            whole = kernels.in_order(*chain, np.ascontiguousarray(rank[:, self.starts]), self.warm, busy, end)
            assert whole, "encoders run far enough ahead for every replica of the backbone"
            most = fullest = 0
        else:
            most, fullest = kernels.simulate(
                forward, backward, delay, rank, self.entry, replica, self.own.backbones, self.room.admitted,
                self.room.entered, busy, end,
            )  # fmt: skip
        busiest = int(np.argmax(busy + self.tails))
        return Group(
            float((end + self.tails).max()), float(busy[busiest]), float(self.tails[busiest]),
            float(busy @ self.devices), int(most), int(fullest),
        )  # fmt: skip

    def is_full(self, own: Group) -> bool:
        """Whether as many microbatches were in flight as memory holds; a fixed order does not wait for memory."""
        if self.starts:
            return False
        return own.most >= self.room.admitted or own.fullest >= self.room.entered

    def may_be_full(self, batch: Batch) -> bool:
        """Whether a group's batch has as many microbatches as memory holds."""
        count = len(batch.microbatches)
        full = count >= self.room.admitted or -(-count // self.own.backbones) >= self.room.entered
        return full and not self.starts

    def held(self, own: Group) -> tuple[float, ...]:
        """Bytes of activations on every rank of the partition with so many of the heaviest microbatch in flight."""
        return self._held(own.most, own.fullest)

    def most(self, batch: Batch) -> tuple[float, ...]:
        """The same with as many in flight as there are, or as memory holds."""
        count = len(batch.microbatches)
        entered = min(self.room.entered, -(-count // self.own.backbones))
        return self._held(min(count, self.room.admitted), entered)

    def _held(self, most: int, fullest: int) -> tuple[float, ...]:
        if self.starts:
            return tuple(flying * each + beside for flying, each, beside in self._flying())
        found = []
        for rank, each in enumerate(self.room.each):
            flying = fullest if self.apart and rank >= self.deep else -(-most // self.sets)
            found.append(flying * each + self.room.beside[rank])
        return tuple(found)

    def _flying(self) -> list[tuple[int, float, float]]:
        """Of every rank of the partition, by 1F1B: microbatches in flight, bytes of each, bytes beside."""
        replicas = [*range(self.deep), *range(self.sets * self.deep, self.ranks)][: self.partition.ranks]
        most = [self.layout.microbatches * self.own.backbones // self.sets] * self.deep
        most += [self.layout.microbatches] * (self.partition.ranks - self.deep)
        flying = [min(int(self.warm[place]) + 1, max(1, own)) for place, own in zip(replicas, most, strict=True)]
        return list(zip(flying, self.room.each, self.room.beside, strict=True))

    def _check_fixed(self) -> None:
        for rank, (flying, each, beside) in enumerate(self._flying()):
            left, needed = self.room.left[rank], flying * each + beside
            if left is not None and needed > left:
                raise UnfitError(
                    f"rank {rank} of {self.layout} needs {needed / 1e9:.3g} GB for the {flying} microbatches that 1F1B "
                    f"has in flight there, and {left / 1e9:.3g} GB are left"
                )

    def _stages(self, batch: Batch) -> Stages:
        if id(batch) not in self._known:
            forward, backward, delay = self._seconds(batch)
            count = len(batch.microbatches)
            replica = np.arange(count) % self.own.backbones
            rank = np.array([[chunk.rank for chunk in self.partition.chunks]] * count, dtype=np.int64)
            if self.apart:
                first, behind = self.entry, (self.sets - 1) * self.deep
                rank[:, :first] += (np.arange(count) % self.sets * self.deep)[:, None]
                rank[:, first:] += (behind + replica * self.layout.backbone.pipeline)[:, None]
            self._known[id(batch)] = Stages(forward, backward, delay, rank, replica)
        return self._known[id(batch)]

    def _seconds(self, batch: Batch) -> tuple[Floats, Floats, Floats]:
        """(microbatches, stages) seconds of forwards, backwards, and messages behind; -1 where there is no stage."""
        forward, backward, delay = self.simulator.remembered(self.layout, batch, self._plain)
        if self.layout.strategy == STRATEGIES[0]:
            return forward, backward, delay
        more = []
        for name, kinds in self.kinds.items():
            tensor = self.meshes[name].tensor
            _, _, each = self.simulator.rows(batch, name, tensor)
            again = self.simulator.again(name, self.layout.strategy, tensor)
            more.append(each[:, 0] @ (kinds * again).T / self._parted(name))
        return forward, np.where(backward < 0.0, backward, backward + np.concatenate(more, axis=1)), delay

    def _parted(self, module: str) -> float:
        """Encoder replicas that share a microbatch of a module."""
        return self.own.encoders / self.sets if self.apart and module != self.last else 1.0

    def _plain(self, batch: Batch) -> tuple[Floats, Floats, Floats]:
        """The same where nothing is computed again."""
        model = self.job.model
        forwards, backwards, delays, later = [], [], [], []
        for module in model.modules:
            name, chunks, kinds = module.name, self.chunks[module.name], self.kinds[module.name]
            tensor, parted = self.meshes[name].tensor, self._parted(name)
            there, base, each = self.simulator.rows(batch, name, tensor)
            forward, backward = (base[:, k : k + 1] + each[:, k] @ kinds.T / parted for k in (0, 1))
            forwards.append(np.where(there, forward, -1.0))
            backwards.append(np.where(there, backward if model.backward(name) else -1.0, -1.0))
            own = [self.simulator.messages(batch, name, chunk.stop - 1, tensor) for chunk in chunks]
            if tensor != self.layout.backbone.tensor:
                # What leaves the module takes as long as the side with fewer devices needs.
                other = self.simulator.messages(batch, name, chunks[-1].stop - 1, self.layout.backbone.tensor)
                own[-1] = np.maximum(own[-1], other)
            delays.append(np.array(own).T)
            later.append((each[:, 0] + each[:, 1]) @ kinds.T / 2 * self._waits(batch, name)[:, None])
        ranks = np.array([chunk.rank for chunk in self.partition.chunks])
        delay = np.concatenate(delays, axis=1)
        delay[:, :-1] *= ranks[1:] != ranks[:-1]
        delay += np.concatenate(later, axis=1)
        return np.concatenate(forwards, axis=1), np.concatenate(backwards, axis=1), delay

    def _waits(self, batch: Batch, module: str) -> Floats:
        """(microbatches,) shares of a stage's seconds that it is waited for beyond those in which it occupies a rank.

        Encoder replicas that count as one get through microbatches as fast as all of them together, but each microbatch
        is in no more pieces than it has instances, and as late as the largest. Forwards and backwards are waited for
        alike: the mean of both.
        """
        parted = self._parted(module)
        if parted == 1.0:
            return np.zeros(len(batch.microbatches))
        pieces = 1 if self.job.model.upstream(module) else self.own.pieces
        counts = np.maximum(1, [len(own.sizes[module]) for own in batch.microbatches])
        largest: Floats = -(-counts // np.minimum(counts, pieces)) / counts
        return np.maximum(0.0, largest - 1 / parted)


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
