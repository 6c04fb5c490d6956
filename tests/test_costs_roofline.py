"""The roofline: operation counts against counts made by hand, and the properties that planning rests on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.costs.corrections import CorrectedCosts, Corrections, Measurement
from ds_dip.costs.model import sample_seconds
from ds_dip.costs.operations import operations
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.models import kinds
from ds_dip.models.spec import Layer, Model, Module, Sizes, TensorSpec

WIDTH = kinds.Width(hidden=8, heads=4, kv_heads=2, head_dim=2, ffn=16, gated=True)
MODEL = Model(
    "small",
    (
        Module(
            "vision",
            (kinds.patch_embedding(8, 2, 1, 4), kinds.encoder_block(WIDTH, 1), kinds.merger(8, 4, 8)),
            frozen=True,
        ),
        Module(
            "language",
            (kinds.token_embedding(8, 32, {"vision": 3}), kinds.decoder_block(WIDTH, 1, 10000), kinds.head(8, 32)),
        ),
    ),
    (("vision", "language"),),
)
TOKENS = st.lists(st.integers(1, 64), max_size=6).map(lambda tokens: Sizes(tuple(tokens), tuple(tokens)))


def test_an_encoder_blocks_flops_are_those_counted_by_hand() -> None:
    # One instance of 3 and one of 5 tokens: projections 8x16 in, 8x8 out, feed-forward 3 x 8x16, attention 4 s² H d.
    linear = 2 * 8 * (8 * 16 + 8 * 8 + 3 * 8 * 16)
    attention = 4 * (9 + 25) * 8
    count = operations(kinds.encoder_block(WIDTH, 1), Sizes((3, 5), (3, 5)))
    assert count.flops == linear + attention


def test_causal_attention_computes_half_of_the_products() -> None:
    sizes = Sizes((7,), (7,))
    encoder = operations(kinds.encoder_block(WIDTH, 1), sizes).flops
    decoder = operations(kinds.decoder_block(WIDTH, 1, 10000), sizes).flops
    assert encoder - decoder == 2 * 49 * 8


def test_the_merger_works_on_the_merged_rows_and_the_head_on_the_vocabulary() -> None:
    assert operations(kinds.merger(8, 4, 8), Sizes((16,), (4,))).flops == 2 * 4 * (32 * 8 + 64)
    assert operations(kinds.head(8, 32), Sizes((5,), (5,))).flops == 2 * 5 * 8 * 32


def test_a_diffusion_blocks_flops_are_those_counted_by_hand() -> None:
    # Clips of 3 and 5 patches with texts of 2 and 4 tokens: two attentions of 4 heads and 2 groups of 2.
    attention = 2 * 8 * (8 * 16 + 8 * 8) + 4 * (9 + 25) * 8
    cross = 2 * 8 * (8 * 8 + 8 * 8) + 2 * 6 * (8 * 8) + 4 * (3 * 2 + 5 * 4) * 8
    feed_forward = 2 * 8 * 3 * 8 * 16
    count = operations(kinds.diffusion_block(WIDTH, 1), Sizes((3, 5), (2, 4)))
    assert count.flops == attention + cross + feed_forward
    assert count.weights == 2 * (8 * 16 + 8 * 8) + 3 * 8 * 16


def test_the_ends_of_a_diffusion_transformer_by_hand() -> None:
    latent, sizes = kinds.Latent(patch=2, channels=3, side=2, frames=4), Sizes((4, 8), (2, 3))
    embedded = operations(kinds.video_embedding(8, 6, latent), sizes)
    assert embedded.flops == 2 * (12 * 12 * 8 + 5 * 6 * 8 + 2 * (256 * 8 + 7 * 8 * 8))
    assert operations(kinds.video_output(8, latent), sizes).flops == 2 * 12 * 8 * 12
    assert operations(kinds.text_output(8), sizes).flops == 0


@settings(deadline=None)
@given(TOKENS, TOKENS)
def test_instances_add_up_whatever_shares_their_microbatch(first: Sizes, second: Sizes) -> None:
    both = Sizes(first.tokens + second.tokens, first.merged + second.merged)
    video = (kinds.video_embedding(8, 6, kinds.Latent(2, 3, 2, 4)), kinds.diffusion_block(WIDTH, 1))
    for layers in (*(module.layers for module in MODEL.modules), video):
        for layer in layers:
            whole, one, two = (operations(layer, sizes) for sizes in (both, first, second))
            assert whole.flops == one.flops + two.flops
            assert whole.kept == one.kept + two.kept


def test_one_long_instance_costs_more_than_two_halves() -> None:
    costs = Roofline(MODEL, Rates(flops=1e3))
    assert costs.forward("language", 1, 2, Sizes((64,), (64,))) > costs.forward(
        "language", 1, 2, Sizes((32, 32), (32, 32))
    )


def test_a_chunk_costs_what_its_layers_cost() -> None:
    costs, sizes = Roofline(MODEL), Sizes((16, 4), (4, 1))
    for cost in (costs.forward, costs.backward, costs.activation_bytes):
        for module in ("vision", "language"):
            parts = sum(cost(module, layer, layer + 1, sizes) for layer in range(3))
            assert cost(module, 0, 3, sizes) == pytest.approx(parts)


def test_no_instance_costs_the_overhead_and_keeps_nothing() -> None:
    costs = Roofline(Model("text", MODEL.modules[1:]), Rates(layer_overhead=0.5, memory=1e30))
    assert costs.forward("language", 0, 3, Sizes((), ())) == pytest.approx(1.5)
    assert costs.activation_bytes("language", 0, 3, Sizes((), ())) == 0


def test_a_backward_is_twice_a_forward_and_a_frozen_module_before_the_first_trainable_has_none() -> None:
    costs, sizes = Roofline(MODEL), Sizes((16,), (4,))
    assert costs.backward("language", 0, 3, sizes) == pytest.approx(2 * costs.forward("language", 0, 3, sizes))
    assert costs.backward("vision", 0, 3, sizes) == 0


def test_a_frozen_module_behind_a_trainable_one_only_passes_gradients_on() -> None:
    vision, language = MODEL.modules
    model = Model("m", (Module("vision", vision.layers), Module("language", language.layers, frozen=True)), MODEL.edges)
    costs, sizes = Roofline(model), Sizes((16,), (4,))
    assert costs.backward("language", 0, 3, sizes) == pytest.approx(costs.forward("language", 0, 3, sizes))


def test_a_layer_of_the_users_own_tells_its_cost_or_is_marked_as_a_guess() -> None:
    output = (TensorSpec(("tokens", 8)),)
    told = Layer("mine", output, options={"flops_per_token": 1000, "kept_per_token": 3})
    silent = Layer("mine", output)
    costs = Roofline(Model("m", (Module("language", (told, silent)),)), Rates(flops=1e3, layer_overhead=0.0))
    sizes = Sizes((4, 6), (4, 6))
    assert costs.guessed == (("language", 1),)
    assert costs.forward("language", 0, 1, sizes) == pytest.approx(10.0)
    assert costs.activation_bytes("language", 0, 1, sizes) == 10 * 3 * 4
    assert costs.forward("language", 1, 2, sizes) == pytest.approx(2 * 10 * 8 * 8 / 1e3)


def test_a_transfer_is_latency_and_bytes() -> None:
    assert Roofline(MODEL, Rates(link=1e3, link_latency=2.0)).transfer(500) == pytest.approx(2.5)


@pytest.mark.parametrize("wrong", [{"flops": 0}, {"link": float("inf")}, {"layer_overhead": -1}, {"compute": "float8"}])
def test_impossible_rates_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)) if "compute" not in wrong else "float8"):
        Rates(**wrong)  # type: ignore[arg-type]


def test_a_sample_costs_what_it_adds_without_what_a_microbatch_pays_once() -> None:
    sizes = {"vision": Sizes((), ()), "language": Sizes((8,), (8,))}
    costly, cheap = (Roofline(MODEL, Rates(layer_overhead=overhead, flops=1e3)) for overhead in (10.0, 0.0))
    assert sample_seconds(MODEL, costly, sizes) == pytest.approx(sample_seconds(MODEL, cheap, sizes), abs=1e-6)


def test_corrections_change_seconds_but_neither_memory_nor_transfers() -> None:
    base, sizes = Roofline(MODEL), Sizes((8,), (8,))
    measured = [Measurement("language", "F", p, 3 * p + 1) for p in (1.0, 2.0, 3.0, 4.0)]
    costs = CorrectedCosts(base, Corrections().updated(measured), {})
    assert costs.forward("language", 0, 3, sizes) == pytest.approx(3 * base.forward("language", 0, 3, sizes) + 1)
    assert costs.backward("language", 0, 3, sizes) == base.backward("language", 0, 3, sizes)
    assert costs.activation_bytes("language", 0, 3, sizes) == base.activation_bytes("language", 0, 3, sizes)
    assert costs.transfer(100) == base.transfer(100)
