"""The grid refines itself where linear interpolation errs, and only there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.table import Row, Seconds
from ds_dip.profiling.refine import TOLERANCE, interpolation_error, measured
from ds_dip.profiling.sweep import Line
from tests.profiling_cases import row

LINE = Line("gelu", (("width", 4),), "rows", (1, 64, 1024))


def rows(cost: Callable[[int], float], spread: float = 0.0) -> list[Row]:
    def measure(line: Line, point: int) -> Row:
        return Row(line.name, line.shape(point), forward=Seconds(cost(point), spread * cost(point)), repeats=16)

    return list(measured(LINE, measure))


def points(cost: Callable[[int], float], spread: float = 0.0) -> list[int]:
    return sorted(found.shape["rows"] for found in rows(cost, spread))


@given(st.floats(0.1, 10.0), st.floats(0.001, 1.0))
def test_a_straight_line_is_tested_once_an_interval_and_left(base: float, slope: float) -> None:
    assert len(points(lambda point: base + slope * point)) == 5


def test_a_step_is_closed_in_upon() -> None:
    found = points(lambda point: 1.0 if point < 300 else 3.0)
    assert len(found) > 7
    below, above = max(p for p in found if p < 300), min(p for p in found if p >= 300)
    assert above / below < 1.5


def test_a_curve_is_followed_within_the_tolerance() -> None:
    found = sorted(rows(lambda point: 1e-3 * point**1.5 + 1), key=lambda r: r.shape["rows"])
    for left, middle, right in zip(found, found[1:], found[2:], strict=False):
        if right.shape["rows"] / left.shape["rows"] < 3:
            assert interpolation_error(left, right, middle, "rows") < 2 * TOLERANCE


def test_noise_is_not_taken_for_a_shape() -> None:
    def bent(point: int) -> float:
        return 1.0 if point in LINE.points else 1.08

    assert len(points(bent)) > 5
    assert len(points(bent, spread=0.5)) == 5


def test_the_error_is_relative_to_the_larger_of_forward_and_backward() -> None:
    left, right = (row("gelu", 1.0, 10.0, width=4, rows=n) for n in (10, 30))
    assert interpolation_error(left, right, row("gelu", 2.0, 10.0, width=4, rows=20), "rows") == pytest.approx(0.1)
    assert interpolation_error(left, right, row("gelu", 1.0, 20.0, width=4, rows=20), "rows") == pytest.approx(0.5)


def test_no_point_is_measured_twice() -> None:
    found = points(lambda point: 1.0 if point < 300 else 3.0)
    assert len(found) == len(set(found))
