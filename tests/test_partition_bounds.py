"""Bounds: no layer lost, the best bottleneck there is, level ranks, and DeepSpeed's answer beside ours."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds_dip.models.partition import PartitionError
from ds_dip.partition import bottleneck_bounds, even_bounds, levelled_bounds
from ds_dip.partition.bounds import bottlenecks

#: (layers, ranks, laps) that other trainers lose layers of or refuse.
AWKWARD = [(63, 4, 1), (42, 16, 1), (80, 16, 2), (30, 4, 1), (7, 2, 1), (10, 3, 1), (5, 4, 1), (200, 16, 8)]
seconds = st.lists(st.integers(0, 50), min_size=1, max_size=12)


def sums(costs: list[int], bounds: tuple[int, ...]) -> list[int]:
    return [sum(costs[start:stop]) for start, stop in pairwise(bounds)]


@pytest.mark.parametrize(("layers", "ranks", "laps"), AWKWARD)
def test_any_count_of_layers_is_cut_without_loss(layers: int, ranks: int, laps: int) -> None:
    homes = {"language": [chunk % ranks for chunk in range(ranks * laps)]}
    for bounds in (
        even_bounds(layers, ranks * laps),
        bottleneck_bounds([1.0] * layers, ranks * laps),
        levelled_bounds({"language": [1.0] * layers}, homes, ranks)["language"],
    ):
        sizes = [stop - start for start, stop in pairwise(bounds)]
        assert (bounds[0], bounds[-1], len(sizes)) == (0, layers, ranks * laps)
        assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@example([1] * 5, 4)
@given(seconds, st.integers(1, 12))
def test_the_slowest_chunk_is_as_fast_as_any_cut_allows(costs: list[int], chunks: int) -> None:
    chunks = min(chunks, len(costs))
    bounds = bottleneck_bounds([float(cost) for cost in costs], chunks)
    every = [(0, *cuts, len(costs)) for cuts in combinations(range(1, len(costs)), chunks - 1)]
    assert bounds in every
    assert max(sums(costs, bounds)) == min(max(sums(costs, cuts)) for cuts in every)
    # Among those with that bottleneck, the most even.
    tied = [cuts for cuts in every if max(sums(costs, cuts)) == max(sums(costs, bounds))]
    assert sum(v * v for v in sums(costs, bounds)) == min(sum(v * v for v in sums(costs, cuts)) for cuts in tied)


@given(seconds)
def test_bottlenecks_are_those_of_the_best_cuts(costs: list[int]) -> None:
    found = bottlenecks([float(cost) for cost in costs], len(costs))
    for chunks, slowest in enumerate(found, 1):
        assert slowest == max(sums(costs, bottleneck_bounds([float(cost) for cost in costs], chunks)))
    with pytest.raises(PartitionError, match="cannot be cut into"):
        bottlenecks([1.0], 2)


def test_what_is_not_on_the_bottleneck_is_even_too() -> None:
    assert bottleneck_bounds([9.0, 1.0, 1.0, 1.0, 1.0], 3) == (0, 1, 3, 5)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_even_bounds_differ_by_one_layer_at_most(layers: int, chunks: int) -> None:
    chunks = min(chunks, layers)
    sizes = [stop - start for start, stop in pairwise(even_bounds(layers, chunks))]
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1


def test_deepspeeds_balance_is_not_the_best_bottleneck() -> None:
    from deepspeed.runtime.utils import partition_balanced

    costs = [3, 14, 8, 6, 11, 1]
    theirs, ours = partition_balanced(costs, 4), bottleneck_bounds(costs, 4)
    assert max(sums(costs, tuple(theirs))) == 17
    assert max(sums(costs, ours)) == 14


@settings(deadline=None, max_examples=40)
@given(seconds, st.integers(1, 12))
def test_the_bottleneck_is_never_worse_than_deepspeeds(costs: list[int], chunks: int) -> None:
    from deepspeed.runtime.utils import partition_balanced

    chunks = min(chunks, len(costs))
    ours = max(sums(costs, bottleneck_bounds(costs, chunks)))
    assert ours <= max(sums(costs, tuple(partition_balanced(costs, chunks))))


@settings(deadline=None)
@given(st.lists(seconds, min_size=1, max_size=3), st.integers(1, 4), st.data())
def test_levelled_bounds_keep_every_layer_and_level_the_ranks(
    costs: list[list[int]], ranks: int, data: st.DataObject
) -> None:
    modules = {f"m{number}": own for number, own in enumerate(costs)}
    chunks = {name: data.draw(st.integers(1, len(own))) for name, own in modules.items()}
    homes = {name: data.draw(st.lists(st.integers(0, ranks - 1), min_size=n, max_size=n)) for name, n in chunks.items()}
    bounds = levelled_bounds(modules, homes, ranks)

    def squares(cuts: dict[str, tuple[int, ...]]) -> int:
        loads = [0] * ranks
        for name, own in cuts.items():
            for index, value in enumerate(sums(modules[name], own)):
                loads[homes[name][index]] += value
        return sum(load * load for load in loads)

    for name, own in modules.items():
        assert len(bounds[name]) == chunks[name] + 1
        assert (bounds[name][0], bounds[name][-1]) == (0, len(own))
        assert all(start < stop for start, stop in pairwise(bounds[name]))
    assert squares(bounds) <= squares({name: bottleneck_bounds(own, chunks[name]) for name, own in modules.items()})


def test_a_heavy_head_leaves_its_rank_less_of_the_rest() -> None:
    # The best bottleneck of each module alone gives rank 1 the head and half of the encoder: 12 and 16.
    costs = {"vision": [1.0] * 8, "language": [1.0] * 8 + [12.0]}
    bounds = levelled_bounds(costs, {"vision": [0, 1], "language": [0, 1]}, 2)
    assert bounds == {"vision": (0, 6, 8), "language": (0, 8, 9)}


@pytest.mark.parametrize("chunks", [0, 6])
def test_more_chunks_than_layers_are_refused_with_the_numbers(chunks: int) -> None:
    for cut in (lambda: even_bounds(5, chunks), lambda: bottleneck_bounds([1.0] * 5, chunks)):
        with pytest.raises(PartitionError, match=f"5 layers cannot be cut into {chunks} chunks: give 1 to 5"):
            cut()
