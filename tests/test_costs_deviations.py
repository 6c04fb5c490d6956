"""Deviations: slow ranks and slow shapes are told apart, and noise is neither."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.costs.corrections import ITERATION, CorrectedCosts, Corrections, Fit, Measurement, size_class
from ds_dip.costs.deviations import KEPT, Deviations
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.models.spec import Sizes
from tests.planner_cases import MODEL
from tests.planner_cases import settings as planner_settings

LINE = Corrections(tuple(Fit(module, kind, 2.0, 0.0) for module in ("a", "b") for kind in "FB"))


def stages(
    count: int, seed: int, *, noise: float = 0.02, slow_rank: float = 1.0, slow_shape: float = 1.0
) -> list[Measurement]:
    """Stages of two modules on three ranks; rank 1 and module a's stages of 400 tokens may be slow."""
    draw, found = random.Random(seed), []
    for number in range(count):
        rank, module, kind = number % 3, draw.choice("ab"), draw.choice("FB")
        tokens = draw.choice((50, 100, 200, 400))
        factor = (slow_rank if rank == 1 else 1.0) * (slow_shape if (module, tokens) == ("a", 400) else 1.0)
        seconds = tokens / 1e4
        found.append(
            Measurement(module, kind, seconds, 2 * seconds * factor * draw.lognormvariate(0, noise), rank, tokens)
        )
    return found


def explained(measurements: list[Measurement]) -> Corrections:
    deviations = Deviations()
    deviations.add(measurements)
    return deviations.explained(LINE)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.floats(0.0, 0.1))
def test_noise_is_no_deviation(seed: int, noise: float) -> None:
    found = explained(stages(400, seed, noise=noise))
    assert all(0.9 < item.factor < 1.1 for item in (*found.ranks, *found.shapes))
    assert len(found.ranks) + len(found.shapes) <= 1


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.floats(1.2, 5.0))
def test_a_slow_rank_is_found_and_no_shape_is_blamed(seed: int, factor: float) -> None:
    found = explained(stages(300, seed, slow_rank=factor))
    assert {item.rank: item.factor for item in found.ranks} == {1: pytest.approx(factor, rel=0.05)}
    assert found.shapes == ()


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.floats(1.2, 5.0))
def test_a_slow_shape_is_found_and_no_rank_is_blamed(seed: int, factor: float) -> None:
    found = explained(stages(600, seed, slow_shape=factor))
    assert found.ranks == ()
    shapes = {(item.module, item.kind, item.size): item.factor for item in found.shapes}
    assert shapes == {("a", kind, size_class(400)): pytest.approx(factor, rel=0.05) for kind in "FB"}


def test_a_slow_rank_and_a_slow_shape_multiply() -> None:
    found = explained(stages(900, 3, slow_rank=2.0, slow_shape=3.0))
    assert found.deviation("a", "F", 1, 400) == pytest.approx(6.0, rel=0.1)
    assert found.deviation("a", "F", 0, 400) == pytest.approx(3.0, rel=0.1)
    assert found.deviation("b", "F", 1, 50) == pytest.approx(2.0, rel=0.1)
    assert found.deviation("b", "B", 2, 50) == 1.0


def test_a_rank_that_has_recovered_is_believed_within_its_newest_stages() -> None:
    deviations = Deviations()
    deviations.add(stages(600, 0, slow_rank=3.0))
    deviations.add(stages(150, 1))
    assert deviations.explained(LINE).ranks == ()


def test_iterations_and_times_of_nothing_are_left_out_and_little_says_nothing() -> None:
    deviations = Deviations()
    deviations.add([Measurement("", ITERATION, 1.0, 9.0)] * 50 + [Measurement("a", "F", 1.0, 0.0)] * 50)
    deviations.add([Measurement("a", "F", 1.0, 8.0, 0, 64)] * 3)
    assert deviations.explained(LINE) == LINE
    deviations.add([Measurement("a", "F", 1.0, 8.0, 0, 64)] * KEPT * 2)
    assert deviations.explained(LINE).deviation("a", "F", 0, 64) == pytest.approx(4.0)


def test_corrected_costs_know_which_rank_runs_a_chunk() -> None:
    partition = planner_settings().partition
    costs = Roofline(MODEL, Rates())
    slow = explained(stages(300, 0, slow_rank=2.0))
    corrected = CorrectedCosts(costs, slow, {(chunk.module, chunk.start): chunk for chunk in partition.chunks})
    sizes = Sizes((16,), (4,))
    for chunk in partition.chunks:
        where = (chunk.module, chunk.start, chunk.stop, sizes)
        factor = corrected.backward(*where) / costs.backward(*where)
        assert factor == pytest.approx(2.0 if chunk.rank == 1 else 1.0, rel=0.05)
        assert corrected.activation_bytes(*where) == costs.activation_bytes(*where)


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_classes_of_sizes_grow_with_tokens(tokens: int) -> None:
    assert size_class(tokens) <= size_class(tokens + 1) <= size_class(2 * tokens + 1)
    assert size_class(0) == 0
