"""Contiguous placement: the chain of all modules in one run of layers a rank, as a pipeline of one model has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from ds_dip.models.partition import Chunk, Partition, check_partition
from ds_dip.models.spec import Model
from ds_dip.partition.bounds import bottleneck_bounds


def contiguous_split(model: Model, ranks: int, weights: Mapping[str, Sequence[float]]) -> Partition:
    """One stage a rank: the whole chain in P runs of layers with the least largest sum of ``weights``
    (one a layer, by module).

    A stage may hold the end of one module and the beginning of the next, as two chunks.
    """
    names = [module.name for module in model.modules]
    starts = (0, *accumulate(len(weights[name]) for name in names))
    bounds = bottleneck_bounds([weight for name in names for weight in weights[name]], ranks)
    chunks = []
    for name, (first, last) in zip(names, pairwise(starts), strict=True):
        cuts = [(rank, max(a, first), min(b, last)) for rank, (a, b) in enumerate(pairwise(bounds))]
        own = [(rank, a, b) for rank, a, b in cuts if a < b]
        chunks += [Chunk(name, index, 0, rank, a - first, b - first) for index, (rank, a, b) in enumerate(own)]
    partition = Partition(ranks, tuple(chunks), tuple((name, None) for name in names))
    check_partition(model, partition)
    return partition
