"""Operators as torch runs them: every one that a layer calls has a case, and keeps the bytes that its layer keeps."""

from __future__ import annotations

import pytest
import torch

from ds_dip.costs.layers import Wanted, layer_sizes, wanted_layers
from ds_dip.costs.operations import operations
from ds_dip.costs.operators import LINKS, OPERATORS, calls
from ds_dip.models.build import LayerFactory
from ds_dip.models.context import Context
from ds_dip.models.spec import Sizes
from ds_dip.profiling.cases import CASES, Case, Place, layer_case
from ds_dip.profiling.memory import kept_bytes
from tests.profiling_cases import CLIPS, MODEL

PLACE = Place(torch.device("cpu"), torch.float32)
WANTED = {wanted.layer.kind: wanted for wanted in wanted_layers(MODEL).values()}
SHAPES = {
    call.operator: dict(call.shape)
    for wanted in (*WANTED.values(), *wanted_layers(CLIPS).values())
    for call in calls(wanted.layer, layer_sizes(wanted.layer, 16, 3, int(wanted.layer.kind == "decoder_block")),
                      loss=wanted.loss)
}  # fmt: skip
SHAPES["gelu"] = {"width": 8, "rows": 12}


def backward(case: Case) -> None:
    outputs = case.run()
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])


def test_every_operator_of_layers_has_a_case() -> None:
    assert set(CASES) == set(OPERATORS) - set(LINKS) - {"optimizer_step"} == set(SHAPES)


@pytest.mark.parametrize("name", CASES)
def test_every_input_and_weight_of_a_case_gets_a_gradient(name: str) -> None:
    case = CASES[name](SHAPES[name], PLACE)
    backward(case)
    assert all(tensor.grad is not None for tensor in (*case.inputs, *case.weights))


@pytest.mark.parametrize("kind", WANTED)
def test_every_input_and_weight_of_a_layer_gets_a_gradient(kind: str) -> None:
    wanted = WANTED[kind]
    case = layer_case(wanted, layer_sizes(wanted.layer, 16, 2, 0), PLACE)
    backward(case)
    assert all(tensor.grad is not None for tensor in (*case.inputs, *case.weights))
    assert wanted.loss == (kind == "head")


@pytest.mark.parametrize("spread", [0, 1])
def test_a_decoder_block_keeps_what_its_operators_keep(spread: int) -> None:
    wanted: Wanted = WANTED["decoder_block"]
    sizes = layer_sizes(wanted.layer, 16, 3, spread)
    whole = kept_bytes(lambda: layer_case(wanted, sizes, PLACE).run())
    parts = sum(kept_bytes(lambda call=call: CASES[call.operator](call.shape, PLACE).run())  # type: ignore[misc]  # bound
                for call in calls(wanted.layer, sizes))  # fmt: skip
    assert whole == pytest.approx(parts, rel=0.05)


def test_a_diffusion_block_keeps_about_what_its_operators_keep() -> None:
    layer, sizes = CLIPS.module("video").layers[1], Sizes((16, 8, 12), (5, 3, 2))
    block = PLACE.module(LayerFactory(layer, 0, frozen=False)())
    given = [PLACE.random(rows, width) for rows, width in ((36, 8), (10, 8), (3, 48))]
    whole = kept_bytes(lambda: list(block(given, Context(sizes, {}))))
    parts = sum(kept_bytes(lambda call=call: CASES[call.operator](call.shape, PLACE).run())  # type: ignore[misc]  # bound
                for call in calls(layer, sizes))  # fmt: skip
    counted = operations(layer, sizes).kept * 4
    assert whole == pytest.approx(parts, rel=0.15)
    assert whole == pytest.approx(counted, rel=0.15)


def test_a_recomputed_layer_keeps_its_input_only() -> None:
    wanted = WANTED["decoder_block"]
    sizes = layer_sizes(wanted.layer, 16, 3, 1)
    plain = kept_bytes(lambda: layer_case(wanted, sizes, PLACE).run())
    again = kept_bytes(lambda: layer_case(wanted, sizes, PLACE, recompute=True).run())
    assert again <= 4 * sum(sizes.tokens) * 8 < plain / 10


def test_a_case_in_half_precision_computes_in_it() -> None:
    case = CASES["linear"](SHAPES["linear"], Place(torch.device("cpu"), torch.bfloat16))
    assert case.run()[0].dtype == torch.bfloat16
