"""What a layout's GPUs hold: state, and microbatches of the data's heaviest batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ds_dip.costs.operators import is_reordered, runs_of
from ds_dip.costs.strategies import STRATEGIES, stage_costs
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Sizes
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import DISAGGREGATED, Layout
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


class _Largest(NamedTuple):
    """Of every module the largest instances of a microbatch, and a number that equal ones share."""

    number: int
    of: Mapping[str, tuple[_Numbered, ...]]


class _Held(NamedTuple):
    """Bytes of one device: what a chunk keeps of a microbatch, the most beside that in its backward, its message."""

    kept: float
    workspace: float
    message: int


class Rooms:
    """Rooms of layouts; ``heaviest`` gives the heaviest batch of the data as a layout's groups run it."""

    def __init__(self, job: Job, heaviest: Callable[[Layout], Sequence[Batch]]) -> None:
        self.job, self._heaviest = job, heaviest
        self._largest: dict[tuple[int, int], _Largest] = {}
        self._holds: dict[tuple[int, int], Mapping[str, _Held]] = {}
        #: Keys of holds: instances are long, and they and chunks that are alike are asked for again and again.
        self._numbers: dict[Sizes, int] = {}
        self._wholes: dict[tuple[tuple[int, ...], ...], int] = {}
        self._alike: dict[tuple[object, ...], int] = {}
        self._chunks: dict[tuple[str, int, int, int], int] = {}

    def of(self, layout: Layout, partition: Partition) -> Room:
        """What the ranks of a layout hold; UnfitError where they do not hold the heaviest microbatch."""
        job, model = self.job, self.job.model
        own, meshes, largest = Pipelines.of(layout), layout.meshes(model), self._largest_of(layout)
        whole = own.encoders / max(1, own.encoders // own.pieces)
        state = states_of(job, layout, partition)
        each, beside, messages = ([0.0] * partition.ranks for _ in range(3))
        for chunk in partition.chunks:
            mesh = meshes[chunk.module]
            held = self._hold(chunk, mesh.tensor, layout.strategy, largest)
            parted = whole if layout.placement == DISAGGREGATED and chunk.module != model.loss_module else 1.0
            each[chunk.rank] += held.kept / parted
            beside[chunk.rank] = max(beside[chunk.rank], held.workspace / parted)
            messages[chunk.rank] = max(messages[chunk.rank], held.message)
        fits = [ANY] * partition.ranks
        every: list[float | None] = []
        most = max(messages)
        of_rank = {chunk.rank: meshes[chunk.module] for chunk in partition.chunks}
        for rank, own_state in enumerate(state):
            memory = job.memory(of_rank[rank].tensor, of_rank[rank].data)
            left = memory.activations(0, own_state, most)
            every.append(left)
            if left is None:
                continue
            assert memory.bytes is not None
            free = left - beside[rank]
            if free < each[rank] or free <= 0:
                needed = each[rank] + beside[rank]
                raise UnfitError(
                    f"rank {rank} of {layout} holds {own_state / 1e9:.3g} GB of parameters, gradients and optimizer "
                    f"state, and needs {needed / 1e9:.3g} GB for the heaviest microbatch of the data: more than "
                    f"{memory.bytes / 1e9:.3g} GB"
                )
            fits[rank] = int(min(ANY, free / each[rank])) if each[rank] else ANY
        if layout.placement != DISAGGREGATED:
            return Room(state, tuple(every), tuple(each), tuple(beside), min(fits), ANY)
        deep, sets = layout.encoder.pipeline, max(1, own.encoders // own.pieces)
        return Room(
            state, tuple(every), tuple(each), tuple(beside), min(ANY, min(fits[:deep]) * sets), min(fits[deep:])
        )

    def _largest_of(self, layout: Layout) -> _Largest:
        """Of every module, the largest instances of a microbatch of the heaviest batch: see ``_largest``."""
        own = Pipelines.of(layout)
        key = own.groups, own.microbatches
        if key not in self._largest:
            every = [mb for batch in self._heaviest(layout) for mb in batch.microbatches]
            found = {
                module.name: tuple(
                    _Numbered(self._numbers.setdefault(sizes, len(self._numbers)), sizes)
                    for sizes in _largest([microbatch.sizes[module.name] for microbatch in every])
                )
                for module in self.job.model.modules
            }
            numbers = tuple(tuple(one.number for one in each) for each in found.values())
            self._largest[key] = _Largest(self._wholes.setdefault(numbers, len(self._wholes)), found)
        return self._largest[key]

    def _hold(self, chunk: Chunk, tensor: int, strategy: str, largest: _Largest) -> _Held:
        """What a chunk holds of the largest microbatches."""
        place = chunk.module, tensor, chunk.start, chunk.stop
        if place not in self._chunks:
            layers = self.job.model.module(chunk.module).layers
            kinds = tuple(self.job.costs(tensor).kinds(chunk.module, chunk.start, chunk.stop).tolist())
            before = layers[chunk.start - 1].output if chunk.start else None
            alike = chunk.module, tensor, kinds, before, layers[chunk.stop - 1].output
            self._chunks[place] = self._alike.setdefault(alike, len(self._alike))
        key = self._chunks[place], largest.number
        if key not in self._holds:
            every = [self._costs(chunk, tensor, own.sizes, largest) for own in largest.of[chunk.module]]
            specs = self.job.model.module(chunk.module).layers[chunk.stop - 1].output
            biggest = largest.of[chunk.module][0].sizes
            message = max(spec.bytes(biggest, self.job.cluster.compute) for spec in specs)
            self._holds[key] = {
                name: _Held(max(kept for kept, _ in found), max(beside for _, beside in found), message)
                for name, found in zip(STRATEGIES, zip(*every, strict=True), strict=True)
            }
        return self._holds[key][strategy]

    def _costs(self, chunk: Chunk, tensor: int, sizes: Sizes, largest: _Largest) -> list[tuple[float, float]]:
        """By memory strategy: (bytes that a chunk keeps of a microbatch, the most beside that in its backward)."""
        job, model, compute = self.job, self.job.model, self.job.cluster.compute
        costs, parallel = job.costs(tensor), job.cluster.parallel(tensor)
        if chunk.start:
            specs = model.module(chunk.module).layers[chunk.start - 1].output
            inputs = sum(spec.bytes(sizes, compute) for spec in specs)
        else:
            inputs = sum(
                spec.bytes(largest.of[source][0].sizes, compute)
                for source in model.upstream(chunk.module)
                for spec in model.module(source).layers[-1].output
            )
        found = stage_costs(
            costs, model, chunk.module, chunk.start, chunk.stop, sizes, inputs=inputs / parallel.rows,
            compute=compute, strategies=STRATEGIES, parallel=parallel,
        )  # fmt: skip
        trained = model.backward(chunk.module)
        return [(own.memory if trained else inputs / parallel.rows, own.workspace) for own in found]


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
