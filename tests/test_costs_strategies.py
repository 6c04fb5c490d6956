"""What strategies cost: less kept, more computed again, in the same places as the runtime does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.costs.corrections import CorrectedCosts, Corrections, Measurement
from ds_dip.costs.roofline import Roofline
from ds_dip.costs.rules import Rule, RuledCosts
from ds_dip.costs.strategies import STRATEGIES, forward_bytes, stage_costs
from ds_dip.models import kinds
from ds_dip.models.spec import Model, Module, Sizes

WIDTH = kinds.Width(16, 4, 2, 4, 40, True)
MODEL = Model(
    "text",
    (
        Module(
            "language",
            (kinds.token_embedding(16, 64, {}), *(kinds.decoder_block(WIDTH, 4, 100),) * 4, kinds.head(16, 64)),
        ),
    ),
)
COSTS = Roofline(MODEL)


def of(start: int, stop: int, sizes: Sizes, costs=COSTS, strategies=STRATEGIES):
    inputs = 0 if not start else 4 * 16 * sum(sizes.tokens)
    return stage_costs(
        costs, MODEL, "language", start, stop, sizes, inputs=inputs, compute="float32", strategies=strategies
    )


@settings(deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(0, 5), st.integers(1, 6))
def test_what_keeps_less_computes_more(tokens: list[int], start: int, layers: int) -> None:
    sizes = Sizes(tuple(tokens), tuple(tokens))
    stop = min(6, start + layers)
    none, selective, full = of(start, stop, sizes)
    assert full.memory <= selective.memory <= none.memory
    assert none.backward <= selective.backward <= full.backward
    assert none.forward == selective.forward == full.forward == COSTS.forward("language", start, stop, sizes)
    assert none.memory == round(COSTS.activation_bytes("language", start, stop, sizes))
    # While its backward runs, a stage that runs again holds what one that kept everything did.
    assert full.memory + full.workspace == pytest.approx(none.memory + none.workspace, abs=2)
    assert selective.workspace >= none.workspace
    assert full.backward == pytest.approx(none.backward + none.forward)


def test_selective_costs_little_of_a_forward() -> None:
    none, selective, _ = of(1, 5, Sizes((512,), (512,)))
    assert 0 < selective.backward - none.backward < 0.2 * none.forward
    assert selective.memory < 0.7 * none.memory


def test_rules_and_corrections_reach_every_strategy() -> None:
    sizes = Sizes((64,), (64,))
    ruled = RuledCosts(COSTS, (Rule("language", "bytes", scale=2.0), Rule("language", "forward", scale=3.0)))
    plain, changed = of(1, 4, sizes), of(1, 4, sizes, ruled)
    assert changed[0].memory == pytest.approx(2 * plain[0].memory, abs=2)
    assert changed[1].memory == pytest.approx(2 * plain[1].memory, abs=2)
    assert changed[2].backward == pytest.approx(plain[0].backward + 3 * plain[0].forward)
    measured = [Measurement("language", "B", p, 2 * p + 1) for p in (1.0, 2.0, 3.0, 4.0)]
    corrected = of(1, 4, sizes, CorrectedCosts(COSTS, Corrections().updated(measured), {}))
    for before, after in zip(plain, corrected, strict=True):
        assert after.backward == pytest.approx(2 * before.backward + 1)
        assert (after.forward, after.memory, after.workspace) == (before.forward, before.memory, before.workspace)


def test_a_forward_that_keeps_nothing_needs_more_than_one_that_keeps_all() -> None:
    sizes = Sizes((64,), (64,))
    passing = {s: forward_bytes(MODEL, "language", 1, 5, sizes, strategy=s, compute="float32") for s in STRATEGIES}
    assert 0 < passing["none"] < passing["selective"] < passing["full"]


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="memory strategy 'some' is unknown: use one of none, selective, full"):
        of(1, 2, Sizes((4,), (4,)), strategies=("some",))
