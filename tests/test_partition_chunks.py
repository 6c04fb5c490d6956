"""Chunks: separated placement, explicit parts, and refusals with the ways out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.models.partition import (
    Chunk,
    Partition,
    PartitionError,
    check_partition,
    model_hash,
    partition_hash,
)
from ds_dip.models.spec import Layer, Model, Module, TensorSpec
from ds_dip.partition import make_partition

OUTPUT = (TensorSpec(("tokens", 4)),)


def model_of(**modules: list[int]) -> Model:
    built = tuple(
        Module(name, tuple(Layer("mine", OUTPUT, options={"flops_per_token": cost}) for cost in costs))
        for name, costs in modules.items()
    )
    return Model("m", built, tuple((name, built[-1].name) for name in list(modules)[:-1]))


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_chunk_c_is_on_rank_c_mod_p(ranks: int, vision: int, language: int) -> None:
    model = model_of(vision=[1] * 13, language=[1] * 17)
    partition = make_partition(model, ranks, {"vision": vision, "language": language}, {"vision": 3})
    for name, laps in (("vision", vision), ("language", language)):
        chain = partition.of(name)
        assert len(chain) == ranks * laps
        assert all((chunk.rank, chunk.segment) == divmod(chunk.index, ranks)[::-1] for chunk in chain)
        assert all(before.stop == after.start for before, after in pairwise(chain))
    assert partition.sub_microbatch == (("vision", 3), ("language", None))


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_a_zigzag_sends_nothing_where_the_chain_turns(ranks: int, vision: int, language: int) -> None:
    model = model_of(vision=[1] * 15, language=[1] * 17)
    laps = {"vision": vision, "language": language}
    looped = make_partition(model, ranks, laps)
    zigzag = make_partition(model, ranks, laps, placement="zigzag")
    chain = [chunk.rank for name in laps for chunk in zigzag.of(name)]
    assert all(abs(before - after) == 1 or before == after for before, after in pairwise(chain))
    assert sum(a == b for a, b in pairwise(chain)) == (vision + language - 1 if ranks > 1 else len(chain) - 1)
    assert [(c.module, c.index, c.segment, c.start, c.stop) for c in zigzag.chunks] == [
        (c.module, c.index, c.segment, c.start, c.stop) for c in looped.chunks
    ]


def test_two_encoders_end_where_the_backbone_begins() -> None:
    partition = make_partition(model_of(vision=[1] * 4, audio=[1] * 4, language=[1] * 4), 2, placement="zigzag")
    ranks = {name: [chunk.rank for chunk in partition.of(name)] for name in ("vision", "audio", "language")}
    assert ranks == {"vision": [0, 1], "audio": [0, 1], "language": [1, 0]}


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(PartitionError, match="placement is 'ring': use one of looped, zigzag"):
        make_partition(model_of(language=[1] * 4), 2, placement="ring")


def test_layers_that_do_not_divide_are_all_there() -> None:
    # 63 layers on 4 ranks, as ViT 5B has.
    chain = make_partition(model_of(language=[5] * 63), 4).of("language")
    assert [chunk.stop - chunk.start for chunk in chain] == [15, 16, 16, 16]


def test_costs_move_the_bounds() -> None:
    chain = make_partition(model_of(language=[10**9, 10**9, 10**9, 10**9 * 3]), 2).of("language")
    assert [(chunk.start, chunk.stop) for chunk in chain] == [(0, 3), (3, 4)]


@pytest.mark.parametrize(
    ("ranks", "laps", "way"),
    [(4, 2, "set its laps to 1"), (8, 1, "use at most 6 pipeline ranks"), (8, 2, "use at most 6 .* with 1 lap")],
)
def test_too_few_layers_are_refused_with_the_numbers_and_the_way_out(ranks: int, laps: int, way: str) -> None:
    with pytest.raises(PartitionError, match=rf"6 layers, but {ranks} ranks x {laps} laps need {ranks * laps}.*{way}"):
        make_partition(model_of(language=[1] * 6), ranks, {"language": laps})


def test_explicit_parts_are_taken_as_they_are() -> None:
    model = model_of(vision=[1] * 3, language=[1] * 6)
    partition = make_partition(model, 2, parts={"language": [1, 2, 2, 1]})
    chain = partition.of("language")
    assert [(chunk.start, chunk.stop, chunk.rank, chunk.segment) for chunk in chain] == [
        (0, 1, 0, 0),
        (1, 3, 1, 0),
        (3, 5, 0, 1),
        (5, 6, 1, 1),
    ]


@pytest.mark.parametrize(
    ("parts", "laps", "message"),
    [([3, 2], None, "sum 5"), ([6, 0], None, "at least one"), ([2, 2, 2], 1, r"3 chunks, but 2 ranks x 1 laps are 2")],
)
def test_explicit_parts_are_checked(parts: list[int], laps: int | None, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        make_partition(model_of(language=[1] * 6), 2, {"language": laps} if laps else None, parts={"language": parts})


def test_names_of_no_module_are_refused() -> None:
    with pytest.raises(PartitionError, match="laps names audio"):
        make_partition(model_of(language=[1]), 1, {"audio": 1})
    with pytest.raises(PartitionError, match="laps of language is 0"):
        make_partition(model_of(language=[1]), 1, {"language": 0})
    with pytest.raises(PartitionError, match="ranks is 0"):
        make_partition(model_of(language=[1]), 0)


def chunk(index: int, start: int, stop: int, rank: int = 0, segment: int = 0, module: str = "language") -> Chunk:
    return Chunk(module, index, segment, rank, start, stop)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ((chunk(0, 0, 3),), "end at layer 3, the module has 4"),
        ((chunk(0, 0, 2), chunk(1, 3, 4)), "must start at layer 2"),
        ((chunk(0, 0, 2), chunk(1, 2, 2), chunk(2, 2, 4)), "at least one layer"),
        ((chunk(0, 0, 4, rank=2),), "on rank 2: ranks are 0 to 1"),
        ((chunk(1, 0, 4),), "has index 1"),
        ((chunk(0, 0, 2), chunk(1, 2, 4, segment=2)), "lap 2"),
        ((chunk(0, 0, 4, module="audio"),), "chunks of audio"),
    ],
)
def test_a_partition_that_does_not_cover_its_model_is_refused(chunks: tuple[Chunk, ...], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        check_partition(model_of(language=[1] * 4), Partition(2, chunks, (("language", None),)))


def test_sub_microbatches_are_checked() -> None:
    model = model_of(language=[1])
    with pytest.raises(PartitionError, match="sub_microbatch of language is 0"):
        make_partition(model, 1, None, {"language": 0})
    for limits in ((("audio", 1),), (("language", 1), ("language", 2))):
        with pytest.raises(PartitionError, match="name modules, each once"):
            check_partition(model, Partition(1, (chunk(0, 0, 1),), limits))
    check_partition(model, Partition(1, (chunk(0, 0, 1),), ()))


def test_the_partitions_hash_is_that_of_where_layers_live() -> None:
    model = model_of(language=[1] * 4)
    one = make_partition(model, 2)
    assert partition_hash(one) == partition_hash(make_partition(model, 2, None, {"language": 7}))
    assert partition_hash(one) != partition_hash(make_partition(model, 2, {"language": 2}))
    assert partition_hash(one) != partition_hash(make_partition(model, 1))


def test_the_models_hash_is_that_of_its_structure() -> None:
    assert model_hash(model_of(language=[1, 2])) == model_hash(model_of(language=[1, 2]))
    assert model_hash(model_of(language=[1, 2])) != model_hash(model_of(language=[1, 3]))


def test_an_adapter_of_few_layers_lives_where_its_inputs_are() -> None:
    layer = Layer("any", (TensorSpec(("tokens", 4)),))
    modules = (Module("vision", (layer,) * 6), Module("projector", (layer,)), Module("language", (layer,) * 4))
    model = Model("m", modules, (("vision", "projector"), ("projector", "language")))
    for placement, rank in (("looped", 1), ("zigzag", 0)):
        partition = make_partition(model, 2, {"vision": 2}, placement=placement)
        assert [(chunk.rank, chunk.segment) for chunk in partition.of("projector")] == [(rank, 0)]
        assert len(partition.of("vision")) == 4
        assert [chunk.rank for chunk in partition.of("language")] == [0, 1]
    with pytest.raises(PartitionError, match="module projector has 1 layers"):
        make_partition(model, 2, {"projector": 2})
