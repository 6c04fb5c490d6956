"""1F1B of a layout's ranks: a fixed order, what baselines and DFLOP run their microbatches in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ds_dip.models.partition import Partition, PartitionError
from ds_dip.parallelism.layout import DISAGGREGATED, Layout
from ds_dip.parallelism.placing import Pipelines
from ds_dip.parallelism.pricing import Floats

Ints = npt.NDArray[np.int64]


def runs_of(partition: Partition) -> list[int]:
    """Where each rank's run of chunks begins along the chain; PartitionError where a rank has more than one run."""
    ranks = [chunk.rank for chunk in partition.chunks]
    starts = [0, *(place for place, (a, b) in enumerate(pairwise(ranks), 1) if a != b)]
    if len(starts) != len(set(ranks)):
        raise PartitionError("1F1B needs one stage a rank: use K 1, and one encoder where it has ranks of its own")
    return starts


def warm_ups(layout: Layout, sets: int) -> Ints:
    """Forwards that every rank of a group runs before its first backward.

    As many as there are ranks behind it. An encoder rank, of which there are ``sets``, runs besides what fills the
    pipelines of the backbone's replicas that it serves.
    """
    deep, wide = layout.encoder.pipeline, layout.backbone.pipeline
    behind = np.arange(wide - 1, -1, -1)
    if layout.placement != DISAGGREGATED:
        return behind
    backbones = Pipelines.of(layout).backbones
    before = np.arange(deep - 1, -1, -1) + -(-wide * backbones // sets)
    return np.concatenate([np.tile(before, sets), np.tile(behind, backbones)])


def merged(starts: list[int], forward: Floats, backward: Floats, delay: Floats) -> tuple[Floats, Floats, Floats]:
    """(microbatches, ranks of a chain): chunks of one rank as one stage, with the message behind the last of them."""
    stops = [*starts[1:], forward.shape[1]]
    whole = [np.add.reduceat(np.maximum(own, 0.0), starts, axis=1) for own in (forward, backward)]
    return whole[0], whole[1], np.ascontiguousarray(delay[:, [stop - 1 for stop in stops]])
