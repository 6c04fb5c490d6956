"""What a layout's GPUs hold: state, and microbatches of the data's heaviest batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ds_dip.costs.operators import is_reordered, runs_of
from ds_dip.costs.strategies import stage_costs
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Sizes
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


class Rooms:
    """Rooms of layouts; ``heaviest`` gives the heaviest batch of the data as a layout's groups run it."""

    def __init__(self, job: Job, heaviest: Callable[[Layout], Sequence[Batch]]) -> None:
        self.job, self._heaviest = job, heaviest
        self._largest: dict[tuple[int, int], dict[str, tuple[Sizes, ...]]] = {}
        self._holds: dict[tuple[object, ...], tuple[float, float]] = {}

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
            sizes = largest[chunk.module][0]
            parted = whole if layout.placement == DISAGGREGATED and chunk.module != model.loss_module else 1.0
            each[chunk.rank] += kept / parted
            beside[chunk.rank] = max(beside[chunk.rank], workspace / parted)
            specs = model.module(chunk.module).layers[chunk.stop - 1].output
            messages[chunk.rank] = max(messages[chunk.rank], *(spec.bytes(sizes, compute) for spec in specs))
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

    def _largest_of(self, layout: Layout) -> dict[str, tuple[Sizes, ...]]:
        """Of every module, the largest instances of a microbatch of the heaviest batch: see ``_largest``."""
        own = Pipelines.of(layout)
        key = own.groups, own.microbatches
        if key not in self._largest:
            every = [mb for batch in self._heaviest(layout) for mb in batch.microbatches]
            self._largest[key] = {
                module.name: _largest([mb.sizes[module.name] for mb in every]) for module in self.job.model.modules
            }
        return self._largest[key]

    def _hold(
        self, chunk: Chunk, mesh: Mesh, strategy: str, sizes: Sizes, largest: dict[str, tuple[Sizes, ...]]
    ) -> tuple[float, float]:
        """(bytes that a chunk keeps of a microbatch, the most beside that while its backward runs) of one device."""
        job, model, compute = self.job, self.job.model, self.job.cluster.compute
        costs, parallel = job.costs(mesh.tensor), job.cluster.parallel(mesh.tensor)
        signature = tuple(costs.kinds(chunk.module, chunk.start, chunk.stop).tolist())
        key = mesh.tensor, chunk.module, signature, chunk.start == 0, strategy, sizes
        if key not in self._holds:
            if chunk.start:
                specs = model.module(chunk.module).layers[chunk.start - 1].output
                inputs = sum(spec.bytes(sizes, compute) for spec in specs)
            else:
                inputs = sum(
                    spec.bytes(largest[source][0], compute)
                    for source in model.upstream(chunk.module)
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
    first = layout.encoder.pipeline if layout.placement == DISAGGREGATED else 0
    before, behind = (
        job.memory(mesh.tensor, mesh.data).state(job.model, partition) for mesh in (layout.encoder, layout.backbone)
    )
    return (*before[:first], *behind[first:])
