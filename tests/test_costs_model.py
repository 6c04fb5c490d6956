"""What a sample adds to a microbatch."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.costs.devices import read_device
from ds_dip.costs.model import alone_seconds, module_seconds
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.models import load_model
from ds_dip.models.spec import Sizes

ROOT = Path(__file__).parent.parent
SMALL, LARGE = (load_model(ROOT / "model_configs" / name) for name in ("quickstart.json", "vlm_s.json"))
H800 = Roofline(LARGE, read_device(ROOT / "profiling" / "devices" / "h800.json").rates("bfloat16", "node"))


def texts(*tokens: int) -> dict[str, Sizes]:
    return {"vision": Sizes((), ()), "language": Sizes(tokens, tokens)}


@settings(deadline=None)
@given(st.integers(1, 3000), st.floats(0, 10))
def test_where_costs_are_sums_a_sample_adds_the_same_alone_and_among_others(tokens: int, overhead: float) -> None:
    costs = Roofline(SMALL, Rates(layer_overhead=overhead, memory=1e24))
    alone = module_seconds(SMALL, costs, texts(tokens))
    assert module_seconds(SMALL, costs, texts(tokens), busy=True) == pytest.approx(alone, rel=1e-6, abs=1e-9)


def test_a_sample_too_small_to_keep_a_device_busy_is_not_small_beside_others() -> None:
    # Alone a hundred tokens wait for the weights, with which operations of three times as many could be done.
    cases = ((100, False), (100, True), (1600, True))
    short, beside, long = (sum(module_seconds(LARGE, H800, texts(tokens), busy=busy)) for tokens, busy in cases)
    assert short < beside / 4
    # Attention grows faster than the tokens do.
    assert 16 < long / beside < 18


def test_a_sample_alone_pays_for_all_that_a_microbatch_pays_once() -> None:
    costs = Roofline(SMALL, Rates(layer_overhead=0.5))
    layers = len(SMALL.module("language").layers)
    alone, added = (sum(of(SMALL, costs, texts(8))) for of in (alone_seconds, module_seconds))
    # A backward takes two forwards.
    assert alone - added == pytest.approx(3 * 0.5 * layers, rel=0.01)


def test_what_has_no_instance_adds_nothing() -> None:
    assert module_seconds(SMALL, Roofline(SMALL), {}, busy=True) == (0.0, 0.0)
    assert alone_seconds(SMALL, Roofline(SMALL), texts(5))[0] == 0.0
