"""Partitions of systems that know one chain of layers: all modules one after the other, cut into interleaved chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ds_dip.models.partition import Chunk, Partition, PartitionError, check_partition
from ds_dip.models.spec import Model
from ds_dip.partition.bounds import bottleneck_bounds

Weights = Mapping[str, Sequence[float]]


def interleaved_split(model: Model, ranks: int, laps: int, weights: Weights) -> Partition:
    """Interleaved chunks: the whole chain in ``ranks * laps`` chunks, chunk c on rank c mod P (Megatron-LM).

    Chunks hold layers of one module, so that a rank has as many as any other; how many each module gets, and its
    bounds, have the least largest sum of ``weights`` (one a layer, by module). Nothing is cut into sub-microbatches.
    Raises PartitionError for more chunks than layers, or fewer than modules.
    """
    total = ranks * laps
    names = [module.name for module in model.modules]
    if total < len(names):
        raise PartitionError(f"{len(names)} modules need as many chunks, and {ranks} ranks x {laps} are {total}")
    counts = dict.fromkeys(names, 1)
    sums = {name: _largest(weights[name], 1) for name in names}
    while sum(counts.values()) < total:
        # A chunk more for the module with the slowest chunk: the greedy choice is the best one for a largest sum.
        growing = [name for name in names if counts[name] < len(weights[name])]
        if not growing:
            raise PartitionError(f"{model.name} has fewer layers than {ranks} ranks x {laps} laps")
        name = max(growing, key=lambda own: sums[own])
        counts[name] += 1
        sums[name] = _largest(weights[name], counts[name])
    chunks, placed = [], 0
    for name in names:
        for index, (start, stop) in enumerate(pairwise(bottleneck_bounds(weights[name], counts[name]))):
            chunks.append(Chunk(name, index, index // ranks, (placed + index) % ranks, start, stop))
        placed += counts[name]
    partition = Partition(ranks, tuple(chunks), tuple((name, None) for name in names))
    check_partition(model, partition)
    return partition


def _largest(weights: Sequence[float], count: int) -> float:
    bounds = bottleneck_bounds(weights, count)
    return max(sum(weights[start:stop]) for start, stop in pairwise(bounds))
