"""What layers are made of: their operators' work is the layer's, attention is charged by the original instance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.memory import footprint
from ds_dip.costs.operations import operations
from ds_dip.costs.operators import OPERATORS, Call, calls, is_reordered, link_bytes, runs_of, spread_sizes
from ds_dip.costs.parallel import TensorParallel
from ds_dip.models.kinds import windows
from ds_dip.models.spec import Layer, Sizes
from tests.profiling_cases import CLIPS, MODEL, sizes

LAYERS = [layer for module in MODEL.modules for layer in dict.fromkeys(layer.kind for layer in module.layers)]
TOKENS = st.lists(st.integers(1, 64), min_size=1, max_size=6)
#: Operators whose work ``operations`` counts; it leaves out what is cheap beside them.
COUNTED = ("linear", "attention", "patch_embedding", "latent_embedding", "cross_attention")


def layer(kind: str) -> Layer:
    return next(layer for module in MODEL.modules for layer in module.layers if layer.kind == kind)


def flops(found: list[Call]) -> float:
    return sum(OPERATORS[call.operator].work(call.shape).flops for call in found if call.operator in COUNTED)


@given(TOKENS, st.sampled_from(["encoder_block", "decoder_block", "head", "patch_embedding"]))
def test_the_operators_work_is_the_layers(tokens: list[int], kind: str) -> None:
    instances = Sizes(tuple(tokens), tuple(tokens))
    assert flops(calls(layer(kind), instances)) == pytest.approx(operations(layer(kind), instances).flops)


@given(TOKENS, st.integers(1, 40))
def test_a_window_is_charged_as_instances_of_its_own(tokens: list[int], window: int) -> None:
    plain = layer("encoder_block")
    own = replace(plain, options={**plain.options, "window": window})
    instances, pieces = Sizes(tuple(tokens), tuple(tokens)), windows(tuple(tokens), window)
    assert calls(own, instances) == calls(plain, Sizes(pieces, pieces))
    assert operations(own, instances).flops == operations(plain, Sizes(pieces, pieces)).flops
    assert footprint(own, instances, "float32") == footprint(plain, Sizes(pieces, pieces), "float32")


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 20)), min_size=1, max_size=5), st.sampled_from([1, 2]))
def test_a_diffusion_transformers_operators_work_is_the_layers(clips: list[tuple[int, int]], degree: int) -> None:
    instances = Sizes(tuple(size for size, _ in clips), tuple(text for _, text in clips))
    for own in CLIPS.module("video").layers:
        counted = operations(own, instances, TensorParallel(degree, sequence=False))
        found = calls(own, instances, degree)
        assert flops(found) == pytest.approx(counted.flops), own.kind
        for kind, wanted in (("F", counted.sums), ("B", counted.backward_sums)):
            sums = [call.shape["elements"] for call in found if call.operator == "all_reduce" and kind in call.passes]
            assert sorted(sums) == sorted(wanted if degree > 1 else ())


@given(TOKENS)
def test_linear_layers_see_the_packed_length_and_attention_every_instance(tokens: list[int]) -> None:
    found = calls(layer("decoder_block"), sizes(*tokens))
    assert {call.shape["rows"] for call in found if call.operator == "linear"} == {sum(tokens)}
    attended = [call.shape for call in found if call.operator == "attention"]
    assert sorted(s["size"] for s in attended for _ in range(s["instances"])) == sorted(tokens)
    assert all(s["causal"] == 1 and (s["heads"], s["kv_heads"]) == (4, 2) for s in attended)


def test_instances_of_several_sizes_are_packed_and_equal_ones_are_not() -> None:
    def packing(*tokens: int) -> list[int]:
        found = calls(layer("decoder_block"), sizes(*tokens))
        return [call.shape["runs"] for call in found if call.operator == "packing"]

    assert packing(8, 8, 8) == []
    assert packing(4, 8) == [2]
    assert packing(8, 4, 8) == [2]


def test_two_ranks_share_a_block_and_reduce_twice() -> None:
    whole, shared = (calls(layer("encoder_block"), sizes(16), degree) for degree in (1, 2))
    assert flops(shared) == pytest.approx(flops(whole) / 2)
    assert [c.shape for c in shared if c.operator == "all_reduce"] == [{"group": 2, "elements": 16 * 8}] * 2
    assert not [c for c in whole if c.operator == "all_reduce"]


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="4 heads, which do not divide among 3 tensor-parallel ranks"):
        calls(layer("decoder_block"), sizes(16), 3)


def test_the_loss_follows_the_head() -> None:
    assert calls(layer("head"), sizes(16), loss=True)[-1] == Call("cross_entropy", {"vocabulary": 32, "rows": 16})


@given(st.integers(1, 200), st.integers(1, 12), st.integers(0, 1))
def test_sizes_that_stand_for_packed_instances_keep_their_mean(size: int, instances: int, spread: int) -> None:
    found = spread_sizes(size, instances, spread)
    assert len(found) == instances
    assert min(found) >= 1
    assert abs(sum(found) / instances - size) <= 1
    if spread and instances > 2 and size > 8:
        assert is_reordered(found)
    assert sum(size * count for size, count in runs_of(found).items()) == sum(found)


def test_a_ring_sends_its_share() -> None:
    shape = {"group": 4, "bytes": 1000}
    assert link_bytes("transfer", {"bytes": 1000}) == 1000
    assert link_bytes("all_reduce", shape) == 1500
    assert link_bytes("all_gather", shape) == link_bytes("reduce_scatter", shape) == 750
