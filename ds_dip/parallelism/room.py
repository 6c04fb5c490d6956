"""What a layout's GPUs hold: state, and microbatches of the data's heaviest batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ds_dip.costs.operators import is_reordered, runs_of
from ds_dip.costs.strategies import stage_costs
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Sizes, TensorSpec
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import DISAGGREGATED, Layout, Mesh
from ds_dip.parallelism.placing import Pipelines
from ds_dip.partition.scoring import UnfitError
from ds_dip.planning.batch import Batch

#: No limit on microbatches in flight.
ANY = 1 << 40


class Room(NamedTuple):
    """What a layout's ranks hold: state, bytes of one (the heaviest) microbatch, the most that a backward needs beside.

    ``admitted`` microbatches fit into a group at once, ``entered`` into a replica of the backbone. ``left`` is what
    activations may take.
    """

    state: tuple[float, ...]
    left: tuple[float | None, ...]
    each: tuple[float, ...]
    beside: tuple[float, ...]
    admitted: int
    entered: int


class _Numbered(NamedTuple):
    """Instances, and a number that equal ones share."""

    number: int
    sizes: Sizes


class Rooms:
    """Rooms of layouts; ``heaviest`` gives the heaviest batch of the data as a layout's groups run it."""

    def __init__(self, job: Job, heaviest: Callable[[Layout], Sequence[Batch]]) -> None:
        self.job, self._heaviest = job, heaviest
        self._largest: dict[tuple[int, int], dict[str, tuple[_Numbered, ...]]] = {}
        self._holds: dict[tuple[object, ...], tuple[float, float]] = {}
        self._messages: dict[tuple[tuple[TensorSpec, ...], int], int] = {}
        #: Keys of holds: instances are long, and they and kinds of layers are asked for again and again.
        self._numbers: dict[Sizes, int] = {}
        self._kinds: dict[tuple[str, int, int, int], tuple[float, ...]] = {}

    def of(self, layout: Layout, partition: Partition) -> Room:
        """What the ranks of a layout hold; UnfitError where they do not hold the heaviest microbatch."""
        job, model, compute = self.job, self.job.model, self.job.cluster.compute
        own, meshes, largest = Pipelines.of(layout), layout.meshes(model), self._largest_of(layout)
        whole = own.encoders / max(1, own.encoders // own.pieces)
        state = states_of(job, layout, partition)
        each, beside, messages = ([0.0] * partition.ranks for _ in range(3))
        for chunk in partition.chunks:
            holds = [
                self._hold(chunk, meshes[chunk.module], layout.strategy, s, largest) for s in largest[chunk.module]
            ]
            kept, workspace = max(own[0] for own in holds), max(own[1] for own in holds)
            biggest = largest[chunk.module][0]
            parted = whole if layout.placement == DISAGGREGATED and chunk.module != model.loss_module else 1.0
            each[chunk.rank] += kept / parted
            beside[chunk.rank] = max(beside[chunk.rank], workspace / parted)
            specs = model.module(chunk.module).layers[chunk.stop - 1].output
            key = specs, biggest.number
            if key not in self._messages:
                self._messages[key] = max(spec.bytes(biggest.sizes, compute) for spec in specs)
            messages[chunk.rank] = max(messages[chunk.rank], self._messages[key])
        fits = [ANY] * partition.ranks
        every: list[float | None] = []
        of_rank = {chunk.rank: meshes[chunk.module] for chunk in partition.chunks}
        for rank, held in enumerate(state):
            memory = job.memory(of_rank[rank].tensor, of_rank[rank].data)
            left = memory.activations(0, held, max(messages))
            every.append(left)
            if left is None:
                continue
            assert memory.bytes is not None
            free = left - beside[rank]
            if free < each[rank] or free <= 0:
                raise UnfitError(
                    f"rank {rank} of {layout} holds {held / 1e9:.3g} GB of parameters, gradients and optimizer state, "
                    f"and needs {(each[rank] + beside[rank]) / 1e9:.3g} GB for the heaviest microbatch of the data: "
                    f"more than {memory.bytes / 1e9:.3g} GB"
                )
            fits[rank] = min(ANY, int(free / each[rank])) if each[rank] else ANY
        if layout.placement != DISAGGREGATED:
            return Room(state, tuple(every), tuple(each), tuple(beside), min(fits), ANY)
        deep, sets = layout.encoder.pipeline, max(1, own.encoders // own.pieces)
        return Room(
            state, tuple(every), tuple(each), tuple(beside), min(ANY, min(fits[:deep]) * sets), min(fits[deep:])
        )

    def _largest_of(self, layout: Layout) -> dict[str, tuple[_Numbered, ...]]:
        """Of every module, the largest instances of a microbatch of the heaviest batch: see ``_largest``."""
        own = Pipelines.of(layout)
        key = own.groups, own.microbatches
        if key not in self._largest:
            every = [mb for batch in self._heaviest(layout) for mb in batch.microbatches]
            self._largest[key] = {
                module.name: tuple(
                    _Numbered(self._numbers.setdefault(sizes, len(self._numbers)), sizes)
                    for sizes in _largest([microbatch.sizes[module.name] for microbatch in every])
                )
                for module in self.job.model.modules
            }
        return self._largest[key]

    def _hold(
        self, chunk: Chunk, mesh: Mesh, strategy: str, own: _Numbered, largest: dict[str, tuple[_Numbered, ...]]
    ) -> tuple[float, float]:
        """(bytes that a chunk keeps of a microbatch, the most beside that while its backward runs) of one device."""
        job, model, compute = self.job, self.job.model, self.job.cluster.compute
        costs, parallel = job.costs(mesh.tensor), job.cluster.parallel(mesh.tensor)
        place = chunk.module, mesh.tensor, chunk.start, chunk.stop
        if place not in self._kinds:
            self._kinds[place] = tuple(costs.kinds(chunk.module, chunk.start, chunk.stop).tolist())
        sources = () if chunk.start else model.upstream(chunk.module)
        taken = None if chunk.start else tuple(largest[source][0].number for source in sources)
        key = mesh.tensor, chunk.module, self._kinds[place], taken, strategy, own.number
        if key not in self._holds:
            sizes = own.sizes
            if chunk.start:
                specs = model.module(chunk.module).layers[chunk.start - 1].output
                inputs = sum(spec.bytes(sizes, compute) for spec in specs)
            else:
                inputs = sum(
                    spec.bytes(largest[source][0].sizes, compute)
                    for source in sources
                    for spec in model.module(source).layers[-1].output
                )
            (found,) = stage_costs(
                costs, model, chunk.module, chunk.start, chunk.stop, sizes, inputs=inputs / parallel.rows,
                compute=compute, strategies=(strategy,), parallel=parallel,
            )  # fmt: skip
            kept = found.memory if model.backward(chunk.module) else inputs / parallel.rows
            self._holds[key] = kept, found.workspace
        return self._holds[key]


def _largest(every: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """Those with most tokens, of each way in which attention keeps its rows; most of all first."""
    found: dict[tuple[bool, bool], Sizes] = {}
    for sizes in sorted(every, key=lambda own: -sum(own.tokens)):
        found.setdefault((len(runs_of(sizes.tokens)) > 1, is_reordered(sizes.tokens)), sizes)
    return tuple(found.values())


def states_of(job: Job, layout: Layout, partition: Partition) -> tuple[float, ...]:
    """Bytes of parameters, gradients and optimizer state on every rank of the partition."""
    held, meshes = [0.0] * partition.ranks, layout.meshes(job.model)
    memory = {mesh: job.memory(mesh.tensor, mesh.data) for mesh in meshes.values()}
    for chunk in partition.chunks:
        mesh = meshes[chunk.module]
        elements = job.elements(chunk.module, mesh.tensor, chunk.start, chunk.stop)
        held[chunk.rank] += memory[mesh].held(job.model.module(chunk.module), elements)
    return tuple(held)
