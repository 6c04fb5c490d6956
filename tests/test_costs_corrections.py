"""Corrections: what is measured pulls the predictions, and a few wild measurements do not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.costs.corrections import ITERATION, WINDOW, Corrections, Measurement


def measured(pairs: list[tuple[float, float]], module: str = "m", kind: str = "F") -> list[Measurement]:
    return [Measurement(module, kind, predicted, seconds) for predicted, seconds in pairs]


@settings(deadline=None)
@given(st.floats(0, 100), st.floats(0, 10), st.lists(st.integers(1, 1000), min_size=4, max_size=30, unique=True))
def test_a_line_is_found_exactly(factor: float, offset: float, predicted: list[int]) -> None:
    corrections = Corrections().updated(measured([(p / 100, factor * p / 100 + offset) for p in predicted]))
    for p in predicted:
        assert corrections.seconds("m", "F", p / 100) == pytest.approx(factor * p / 100 + offset, rel=1e-6, abs=1e-9)


def test_a_fifth_of_wild_measurements_does_no_harm() -> None:
    draw = random.Random(0)
    pairs = [(p, 2 * p + 0.5) for p in (draw.uniform(0.1, 2) for _ in range(80))]
    pairs += [(draw.uniform(0.1, 2), draw.uniform(50, 1000)) for _ in range(20)]
    corrections = Corrections().updated(measured(pairs))
    assert corrections.seconds("m", "F", 1.0) == pytest.approx(2.5, rel=0.1)


def test_equal_predictions_give_a_factor_and_no_offset() -> None:
    corrections = Corrections().updated(measured([(2.0, 5.0), (2.0, 6.0), (2.0, 7.0)]))
    assert corrections.seconds("m", "F", 2.0) == pytest.approx(6.0)
    assert corrections.seconds("m", "F", 4.0) == pytest.approx(12.0)


def test_what_does_not_grow_is_a_constant() -> None:
    corrections = Corrections().updated(measured([(float(p), 8.0 - p / 10) for p in range(1, 9)]))
    assert 7.0 <= corrections.seconds("m", "F", 1e6) <= 8.0


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.3, 1.0))
def test_noise_never_makes_a_prediction_that_does_not_depend_on_the_work(seed: int, noise: float) -> None:
    draw = random.Random(seed)
    pairs = [(p, 3 * p * draw.lognormvariate(0, noise)) for p in (draw.uniform(0.8, 1.2) for _ in range(60))]
    corrections = Corrections().updated(measured(pairs))
    assert corrections.seconds("m", "F", 1.2) > corrections.seconds("m", "F", 0.8)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 0.5))
def test_an_iteration_is_its_makespan_and_what_surrounds_it_whatever_the_noise(seed: int, noise: float) -> None:
    draw = random.Random(seed)
    pairs = [(p, p + 0.3 * draw.lognormvariate(0, noise)) for p in (draw.uniform(0.9, 1.1) for _ in range(24))]
    corrections = Corrections().updated(measured(pairs, "", ITERATION))
    assert corrections.iteration(2.0) - corrections.iteration(1.0) == pytest.approx(1.0)
    assert corrections.iteration(1.0) == pytest.approx(1.3, abs=0.2)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)),
        min_size=1,
        max_size=40,
    ),
    st.floats(0, 1e3),
)
def test_a_corrected_prediction_is_never_negative(pairs: list[tuple[float, float]], predicted: float) -> None:
    assert Corrections().updated(measured(pairs)).seconds("m", "F", predicted) >= 0


def test_what_was_not_measured_is_left_as_it_is() -> None:
    corrections = Corrections().updated(measured([(1.0, 2.0)]))
    assert corrections.seconds("m", "B", 1.0) == 1.0
    assert corrections.seconds("other", "F", 1.0) == 1.0


def test_updates_in_parts_equal_one_update_and_leave_the_old_value() -> None:
    pairs = measured([(float(p), 3.0 * p) for p in range(1, 20)])
    first = Corrections().updated(pairs[:7])
    assert first.updated(pairs[7:]) == Corrections().updated(pairs)
    assert first == Corrections().updated(pairs[:7])


def test_the_window_forgets_how_the_machine_once_was() -> None:
    old = Corrections().updated(measured([(float(p % 9 + 1), 9.0 * (p % 9 + 1)) for p in range(WINDOW)]))
    new = old.updated(measured([(float(p % 9 + 1), 2.0 * (p % 9 + 1)) for p in range(WINDOW)]))
    assert new.seconds("m", "F", 5.0) == pytest.approx(10.0)
    assert len(new.window) == WINDOW


def test_the_iteration_is_corrected_from_the_makespan() -> None:
    corrections = Corrections().updated(measured([(p / 10, p / 10 + 0.3) for p in range(1, 9)], "", ITERATION))
    assert corrections.iteration(1.0) == pytest.approx(1.3)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="measured is"):
        Corrections().updated(measured([(1.0, wrong)]))
