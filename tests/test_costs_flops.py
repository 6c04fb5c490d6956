"""Model FLOPs: known counts of known layers, forward and backward, whatever is frozen."""

from __future__ import annotations

from dataclasses import replace

from ds_dip.costs.flops import model_flops
from ds_dip.costs.operations import operations
from ds_dip.models.spec import Layer, Model, Module, Sizes, TensorSpec


def linear(weights: int) -> Layer:
    """A layer of a user's own, that multiplies each token with so many weights."""
    options = {"flops_per_token": 2 * weights, "weights": weights}
    return Layer("linear", (TensorSpec(("tokens", 8)),), options=options)


VISION = Module("vision", (linear(10), linear(30)))
LANGUAGE = Module("language", (linear(100),) * 7)
MODEL = Model("m", (VISION, LANGUAGE), (("vision", "language"),))
SIZES = {"vision": Sizes((4, 2), (2, 1)), "language": Sizes((9,), (9,))}


def test_a_trained_layer_takes_six_operations_a_weight_and_token() -> None:
    assert model_flops(MODEL, SIZES) == 6 * (6 * 40 + 9 * 700)


def test_a_frozen_module_before_everything_runs_forward_only_and_one_in_between_passes_gradients() -> None:
    first = replace(MODEL, modules=(replace(VISION, frozen=True), LANGUAGE))
    assert model_flops(first, SIZES) == 2 * 6 * 40 + 6 * 9 * 700
    last = replace(MODEL, modules=(VISION, replace(LANGUAGE, frozen=True)))
    assert model_flops(last, SIZES) == 6 * 6 * 40 + 4 * 9 * 700


def test_a_batch_without_images_counts_the_backbone_alone() -> None:
    assert model_flops(MODEL, {**SIZES, "vision": Sizes((), ())}) == 6 * 9 * 700


def test_attention_grows_with_the_squares_of_the_instances() -> None:
    options = {"hidden": 8, "heads": 2, "head_dim": 4, "kv_heads": 2, "ffn": 16, "gated": 0}
    block = Layer("decoder_block", (TensorSpec(("tokens", 8)),), options=options)
    model = Model("m", (Module("language", (block, block)),), ())
    for tokens in ((6,), (3, 3)):
        sizes = Sizes(tokens, tokens)
        assert model_flops(model, {"language": sizes}) == 6 * operations(block, sizes).flops


def test_a_layer_that_tells_nothing_gives_no_figure() -> None:
    silent = Layer("mine", (TensorSpec(("tokens", 8)),))
    assert model_flops(replace(MODEL, modules=(VISION, Module("language", (silent,)))), SIZES) is None
