"""Where every layer lives: the chunks of every module and their ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ds_dip.models.spec import Model


class PartitionError(ValueError):
    """A partition that cannot be used; the message says which module, the numbers and the ways out."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Layers ``start`` to ``stop`` (exclusive) of a module, on one pipeline rank.

    ``index`` is its position in the module's chain of chunks, ``segment`` the lap it belongs to.
    """

    module: str
    index: int
    segment: int
    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Chunks of every module in data-flow order, and each module's sub-microbatch size B.

    ``sub_microbatch`` counts instances; ``None``, or a module left out, leaves its microbatch whole.
    """

    ranks: int
    chunks: tuple[Chunk, ...]
    sub_microbatch: tuple[tuple[str, int | None], ...]

    def of(self, module: str) -> tuple[Chunk, ...]:
        """The chunks of one module along its chain."""
        return tuple(chunk for chunk in self.chunks if chunk.module == module)

    def on(self, rank: int) -> tuple[Chunk, ...]:
        """The chunks that live on one rank, in data-flow order."""
        return tuple(chunk for chunk in self.chunks if chunk.rank == rank)


def check_partition(model: Model, partition: Partition) -> None:
    """Check that a partition covers a model: every layer once, in order, on ranks that exist and all have some.

    Raises PartitionError, naming the module, for the first thing that does not hold.
    """
    if partition.ranks < 1:
        raise PartitionError(f"the partition has {partition.ranks} ranks: at least 1 is needed")
    names = [module.name for module in model.modules]
    if list(dict.fromkeys(chunk.module for chunk in partition.chunks)) != names:
        raise PartitionError(
            f"the partition has chunks of {', '.join(dict.fromkeys(c.module for c in partition.chunks)) or 'no module'}"
            f", model {model.name!r} has {', '.join(names)}: give every module its chunks, in this order"
        )
    for module in model.modules:
        _check_module(module.name, len(module.layers), partition)
    empty = set(range(min(partition.ranks, len(partition.chunks) + 1))) - {chunk.rank for chunk in partition.chunks}
    if empty:
        raise PartitionError(
            f"the partition has {partition.ranks} ranks and no chunk on rank {min(empty)}: give every rank at least "
            f"one chunk, or use fewer ranks"
        )
    limits = [name for name, _ in partition.sub_microbatch]
    if len(set(limits)) < len(limits) or not set(limits) <= set(names):
        raise PartitionError(f"sub_microbatch names {', '.join(limits)}: name modules, each once ({', '.join(names)})")
    for name, size in partition.sub_microbatch:
        if size is not None and size < 1:
            raise PartitionError(
                f"sub_microbatch of {name} is {size}: give at least 1 instance, or none to cut nothing"
            )
        if size is not None and (upstream := model.upstream(name)):
            raise PartitionError(
                f"sub_microbatch of {name} is {size}, but it takes the outputs of {', '.join(upstream)} and is never "
                "cut: leave it out"
            )


def _check_module(name: str, layers: int, partition: Partition) -> None:
    chain, reached, lap = partition.of(name), 0, 0
    for index, chunk in enumerate(chain):
        where = f"module {name}, chunk {index}"
        if chunk.index != index:
            raise PartitionError(f"{where} has index {chunk.index}: list a module's chunks along its chain")
        if chunk.start != reached or chunk.stop <= chunk.start:
            raise PartitionError(
                f"{where} has the layers {chunk.start} to {chunk.stop} (exclusive): it must start at layer {reached}, "
                "where the one before it stops, and hold at least one layer"
            )
        if not 0 <= chunk.rank < partition.ranks:
            raise PartitionError(f"{where} is on rank {chunk.rank}: ranks are 0 to {partition.ranks - 1}")
        if not lap <= chunk.segment <= lap + (index > 0):
            raise PartitionError(f"{where} is in lap {chunk.segment}: laps count up from 0 along the chain")
        reached, lap = chunk.stop, chunk.segment
    if reached != layers:
        raise PartitionError(f"module {name}: the chunks end at layer {reached}, the module has {layers} layers")


def partition_hash(partition: Partition) -> str:
    """SHA-256 of where every layer lives: equal for two partitions exactly if their chunks and ranks are.

    Sub-microbatch sizes are left out; they move no parameter.
    """
    return _sha256({"ranks": partition.ranks, "chunks": [asdict(chunk) for chunk in partition.chunks]})


def model_hash(model: Model) -> str:
    """SHA-256 of a model's structure: modules, layers with their options and boundaries, edges."""
    return _sha256(
        {
            "modules": [
                {
                    "name": module.name,
                    "frozen": module.frozen,
                    "layers": [
                        [
                            layer.kind,
                            [[list(spec.dims), spec.dtype] for spec in layer.output],
                            list(layer.fields),
                            sorted(layer.options.items()),
                        ]
                        for layer in module.layers
                    ],
                }
                for module in model.modules
            ],
            "edges": [list(edge) for edge in model.edges],
        }
    )


def _sha256(document: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
