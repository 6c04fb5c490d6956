"""Partitions of systems that know one chain of layers."""

from __future__ import annotations

from itertools import pairwise
from math import fsum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.models.partition import Partition, PartitionError, check_partition
from ds_dip.models.spec import Layer, Model, Module, TensorSpec
from ds_dip.reproduction.splits import interleaved_split


def chain(layers: tuple[int, ...]) -> Model:
    layer = Layer("own", (TensorSpec(("tokens", 4)),))
    modules = tuple(Module(f"m{number}", (layer,) * count) for number, count in enumerate(layers))
    return Model("chain", modules, tuple((a.name, b.name) for a, b in pairwise(modules)))


@st.composite
def chains(draw: st.DrawFn) -> tuple[Model, int, dict[str, list[float]]]:
    model = chain(tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))))
    weight = st.floats(0.0, 10.0)
    weights = {m.name: draw(st.lists(weight, min_size=len(m.layers), max_size=len(m.layers))) for m in model.modules}
    return model, draw(st.integers(1, 4)), weights


def largest(partition: Partition, weights: dict[str, list[float]]) -> float:
    return max(fsum(weights[own.module][own.start : own.stop]) for own in partition.chunks)


@given(chains(), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_interleaved_chunks_cover_the_chain_and_are_as_many_on_every_rank(
    given: tuple[Model, int, dict[str, list[float]]], laps: int
) -> None:
    model, ranks, weights = given
    count = sum(len(own.layers) for own in model.modules)
    if not len(model.modules) <= ranks * laps <= count:
        with pytest.raises(PartitionError):
            interleaved_split(model, ranks, laps, weights)
        return
    partition = interleaved_split(model, ranks, laps, weights)
    check_partition(model, partition)
    assert [own.rank for own in partition.chunks] == [number % ranks for number in range(ranks * laps)]


@given(chains())
@settings(max_examples=50, deadline=None)
def test_no_other_number_of_chunks_a_module_has_a_smaller_largest(
    given: tuple[Model, int, dict[str, list[float]]],
) -> None:
    from ds_dip.partition.bounds import bottleneck_bounds

    model, ranks, weights = given
    names = [own.name for own in model.modules]
    if len(names) != 2 or not 2 <= ranks <= sum(map(len, weights.values())):
        return
    found = largest(interleaved_split(model, ranks, 1, weights), weights)
    others = []
    for first in range(1, ranks):
        counts = dict(zip(names, (first, ranks - first), strict=True))
        if all(counts[name] <= len(weights[name]) for name in names):
            cuts = {name: bottleneck_bounds(weights[name], counts[name]) for name in names}
            others.append(max(fsum(weights[n][a:b]) for n, own in cuts.items() for a, b in pairwise(own)))
    assert found <= min(others) * (1 + 1e-9) + 1e-12
