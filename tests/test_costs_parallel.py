"""Tensor parallelism in the costs: against formulas by hand, and nothing lost among the devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.composed import TableCosts
from ds_dip.costs.devices import read_device
from ds_dip.costs.memory import footprint
from ds_dip.costs.operations import operations
from ds_dip.costs.operators import calls
from ds_dip.costs.parallel import ALONE, TensorParallel
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.costs.strategies import STRATEGIES, stage_costs
from ds_dip.costs.table import LatencyTable, Row, Seconds
from ds_dip.models import kinds, load_model
from ds_dip.models.spec import Layer, Model, Module, Sizes

ROOT = Path(__file__).parent.parent
WIDTH = kinds.Width(hidden=8, heads=4, kv_heads=4, head_dim=2, ffn=16, gated=True)
LATENT = kinds.Latent(patch=2, channels=3, side=2, frames=4)
CLIPS = Model(
    "clips",
    (
        Module(
            "text", (kinds.token_embedding(8, 32, {}), kinds.decoder_block(WIDTH, 1, 100), kinds.text_output(8)), True
        ),
        Module(
            "video",
            (kinds.video_embedding(8, 8, LATENT), kinds.diffusion_block(WIDTH, 1), kinds.video_output(8, LATENT)),
        ),
    ),
    (("text", "video"),),
)
IMAGES = Model(
    "images",
    (
        Module("vision", (kinds.patch_embedding(8, 2, 1, 4), kinds.encoder_block(WIDTH, 1), kinds.merger(8, 4, 8))),
        Module(
            "language",
            (kinds.token_embedding(8, 32, {"vision": 3}), kinds.decoder_block(WIDTH, 1, 100), kinds.head(8, 32)),
        ),
    ),
    (("vision", "language"),),
)
LAYERS = [layer for model in (CLIPS, IMAGES) for module in model.modules for layer in module.layers]
SIZES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), max_size=5).map(
    lambda pairs: Sizes(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))
)
#: Nothing but one thing costs.
FREE = {"flops": 1e300, "memory": 1e300, "layer_overhead": 0.0}


def seconds(model: Model, module: str, layer: int, sizes: Sizes, parallel: TensorParallel) -> tuple[float, float]:
    """Forward and backward where only what devices send each other takes time."""
    costs = Roofline(model, Rates(**FREE, compute="bfloat16"), parallel)
    where = (module, layer, layer + 1, sizes)
    return costs.forward(*where), costs.backward(*where)


def test_a_blocks_matrices_and_attention_are_shared_by_hand() -> None:
    # Two devices: 2 of 4 heads, 8 of 16 of the feed-forward; sizes 3 and 5.
    count = operations(kinds.decoder_block(WIDTH, 1, 100), Sizes((3, 5), (3, 5)), TensorParallel(2, False))
    weights = 8 * (4 + 4 + 4 + 4) + 3 * 8 * 8
    assert count.weights == weights
    assert count.flops == 2 * 8 * weights + 4 * 0.5 * 4 * (9 + 25)
    assert count.kept == 8 * (4 * 8 + 4 * 4 + 2 + 4 * 8)


def test_sequence_parallel_devices_keep_a_share_of_everything() -> None:
    for layer in LAYERS:
        if "block" in layer.kind or layer.kind in ("merger", "head", "text_output"):
            sizes = Sizes((12, 20), (3, 5)) if layer.kind != "diffusion_block" else Sizes((12, 20), (0, 0))
            whole = operations(layer, sizes)
            share = operations(layer, sizes, TensorParallel(4))
            assert share.kept == pytest.approx(whole.kept / 4), layer.kind
            replicated = operations(layer, sizes, TensorParallel(4, sequence=False)).kept
            assert whole.kept / 4 < replicated <= whole.kept


@given(SIZES, st.sampled_from([2, 4]), st.booleans())
def test_the_devices_together_do_the_layers_arithmetic(sizes: Sizes, degree: int, sequence: bool) -> None:
    for layer in LAYERS:
        whole = operations(layer, sizes, ALONE)
        share = operations(layer, sizes, TensorParallel(degree, sequence))
        assert share.flops * degree >= whole.flops * (1 - 1e-12)
        if layer.kind not in ("patch_embedding", "video_embedding", "video_output"):
            assert share.flops * degree == pytest.approx(whole.flops)
        assert share.weights * degree >= whole.weights * (1 - 1e-12)
        assert share.sums == whole.sums


def test_one_device_costs_what_a_rank_costs() -> None:
    for model in (CLIPS, IMAGES):
        for module in model.modules:
            where = (module.name, 0, 3, Sizes((12, 8), (3, 2)))
            plain, alone = Roofline(model), Roofline(model, Rates(), TensorParallel(1, False, 5.0, 7.0))
            for name in ("forward", "backward", "activation_bytes"):
                assert getattr(alone, name)(*where) == getattr(plain, name)(*where)


@pytest.mark.parametrize("degree", [2, 4])
def test_a_block_reduces_twice_a_pass_by_a_ring(degree: int) -> None:
    sizes, parallel = Sizes((6, 4), (6, 4)), TensorParallel(degree, link=1e3, link_latency=0.25)
    one = (degree - 1) * 0.25 + 2 * (degree - 1) / degree * (10 * 8 * 2) / 1e3
    for module, model in (("vision", IMAGES), ("language", IMAGES)):
        assert seconds(model, module, 1, sizes, parallel) == pytest.approx((2 * one, 2 * one))
    # A diffusion block has three parts, and the gradient of its text is one more sum.
    text = (degree - 1) * 0.25 + 2 * (degree - 1) / degree * (10 * 8 * 2) / 1e3
    assert seconds(CLIPS, "video", 1, sizes, parallel) == pytest.approx((3 * one, 3 * one + text))


def test_embedding_and_head_reduce_in_one_pass_and_the_merger_in_both() -> None:
    sizes, parallel = Sizes((16,), (4,)), TensorParallel(2, link=1e3, link_latency=0.0)
    rows, merged = 16 * 8 * 2 / 1e3, 4 * 8 * 2 / 1e3
    assert seconds(IMAGES, "language", 0, sizes, parallel) == pytest.approx((rows, 0.0))
    assert seconds(IMAGES, "language", 2, sizes, parallel) == pytest.approx((0.0, rows))
    assert seconds(IMAGES, "vision", 2, sizes, parallel) == pytest.approx((merged, rows))
    assert seconds(IMAGES, "vision", 0, sizes, parallel) == pytest.approx((0.0, 0.0))


def test_composed_layers_reduce_as_often() -> None:
    sizes = Sizes((16,), (4,))
    for layer in LAYERS:
        count = operations(layer, sizes, TensorParallel(2))
        for kind, wanted in (("F", count.sums), ("B", count.backward_sums)):
            found = [
                c.shape["elements"] for c in calls(layer, sizes, 2) if c.operator == "all_reduce" and kind in c.passes
            ]
            assert sorted(found) == sorted(wanted), (layer.kind, kind)


def test_a_tables_head_reduces_in_the_backward_only() -> None:
    reduced = Row("all_reduce", {"group": 2, "bytes": 16 * 8 * 4}, forward=Seconds(100.0))
    costs = TableCosts(IMAGES, LatencyTable("a device", "float32", rows=(reduced,)), tensor_parallel=2)
    where = ("language", 2, 3, Sizes((16,), (16,)))
    assert costs.forward(*where) < 1
    assert 100 < costs.backward(*where) < 101


def test_a_message_is_cut_by_rows_or_sent_whole_by_every_device() -> None:
    rates = Rates(link=10.0, link_latency=1.0)
    assert Roofline(IMAGES, rates, TensorParallel(4)).transfer(400) == 11.0
    assert Roofline(IMAGES, rates, TensorParallel(4, sequence=False)).transfer(400) == 41.0


def test_a_devices_group_uses_its_link_inside_the_node() -> None:
    device = read_device(ROOT / "profiling" / "devices" / "h800.json")
    parallel = device.tensor_parallel(8)
    assert (parallel.degree, parallel.sequence) == (8, True)
    assert parallel.link == 0.8 * 200e9
    assert parallel.link_latency == 5e-6


def test_a_group_of_devices_is_faster_than_one_and_slower_than_free() -> None:
    model = load_model(ROOT / "model_configs" / "vlm_s.json")
    device = read_device(ROOT / "profiling" / "devices" / "h800.json")
    rates, where = device.rates("bfloat16"), ("language", 1, 9, Sizes((8192,), (8192,)))
    alone = Roofline(model, rates).forward(*where)
    four = Roofline(model, rates, device.tensor_parallel(4)).forward(*where)
    # Two all-reduces of 67 MB over 160 GB/s take nearly as long as a quarter of a layer's arithmetic.
    assert alone / 4 < four < alone / 1.9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorParallel(0), "degree is 0: at least 1"),
        (lambda: TensorParallel(2, link=0.0), "link is 0.0"),
        (lambda: TensorParallel(2, link_latency=float("nan")), "latency is nan"),
        (lambda: Roofline(IMAGES, Rates(), TensorParallel(3)), "vision has 4 heads, which do not divide among 3"),
    ],
)
def test_impossible_groups_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_a_layer_of_another_kind_is_done_by_every_device() -> None:
    layer = Layer("mine", kinds.text_output(4).output, options={"flops_per_token": 100, "weights": 7})
    sizes = Sizes((5,), (5,))
    assert operations(layer, sizes, TensorParallel(4)) == operations(layer, sizes)


def test_sequence_parallel_devices_keep_a_share_of_a_layers_footprint() -> None:
    sizes = Sizes((12, 20), (3, 5))
    for layer in LAYERS:
        if layer.kind in ("encoder_block", "decoder_block", "patch_embedding", "head", "text_output"):
            whole, share, replicated = (
                footprint(layer, sizes, "bfloat16", parallel=parallel)
                for parallel in (ALONE, TensorParallel(4), TensorParallel(4, sequence=False))
            )
            assert share.kept == pytest.approx(whole.kept / 4), layer.kind
            assert share.selective == pytest.approx(whole.selective / 4), layer.kind
            assert whole.kept / 4 < replicated.kept <= whole.kept
            assert share.backward < whole.backward or layer.kind in ("patch_embedding", "text_output")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stage_of_several_devices_keeps_a_share_by_every_strategy(strategy: str) -> None:
    sizes, rates, found = Sizes((64, 32), (64, 32)), Rates(compute="bfloat16"), []
    for parallel in (ALONE, TensorParallel(4)):
        costs = Roofline(IMAGES, rates, parallel)
        (own,) = stage_costs(
            costs, IMAGES, "language", 1, 2, sizes, inputs=96 * 8 * 2 / parallel.rows, compute="bfloat16",
            strategies=(strategy,), parallel=parallel,
        )  # fmt: skip
        found.append(own)
    whole, share = found
    assert share.memory == pytest.approx(whole.memory / 4, rel=1e-3)
    assert share.workspace < whole.workspace
