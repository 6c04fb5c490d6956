"""One chain of all modules in a run of layers a rank."""

from __future__ import annotations

from math import fsum

import pytest
from hypothesis import given, settings

from ds_dip.models.partition import PartitionError, check_partition
from ds_dip.models.spec import Model
from ds_dip.partition.bounds import bottlenecks
from ds_dip.partition.contiguous import contiguous_split
from tests.test_reproduction_splits import chains


@given(chains())
@settings(max_examples=100, deadline=None)
def test_contiguous_stages_cover_the_chain_in_the_order_of_ranks(
    given: tuple[Model, int, dict[str, list[float]]],
) -> None:
    model, ranks, weights = given
    if ranks > sum(len(own.layers) for own in model.modules):
        with pytest.raises(PartitionError):
            contiguous_split(model, ranks, weights)
        return
    partition = contiguous_split(model, ranks, weights)
    check_partition(model, partition)
    homes = [own.rank for own in partition.chunks]
    assert homes == sorted(homes)
    stages = [fsum(fsum(weights[own.module][own.start : own.stop]) for own in partition.on(r)) for r in range(ranks)]
    every = [weight for own in model.modules for weight in weights[own.name]]
    assert max(stages) == pytest.approx(bottlenecks(every, ranks)[-1], rel=1e-9, abs=1e-12)
