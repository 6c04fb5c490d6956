"""Interpolation: exact at rows, linear between them, the roofline's slope beyond, and always marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.grid import EXACT, INTERPOLATED, OUTSIDE, Columns, Family, bracket, families, key_of
from ds_dip.costs.table import Row
from tests.profiling_cases import row

POINTS = st.lists(st.integers(1, 10**6), min_size=1, max_size=8, unique=True)


def family(values: dict[tuple[int, ...], float]) -> Family:
    columns: dict[tuple[int, ...], Columns] = {point: (value, 0.0, 0.0, 0.0) for point, value in values.items()}
    return Family(columns, lambda point: (float(point[0]) * max(point[1], 1), 1.0, 1.0, 1.0))


@given(POINTS, st.data())
def test_a_row_itself_is_exact(points: list[int], data: st.DataObject) -> None:
    values = {(point,): float(point % 97 + 1) for point in points}
    chosen = data.draw(st.sampled_from(points))
    cost = family(values).at(chosen)
    assert (cost.columns[0], cost.mark) == (values[chosen,], EXACT)


@given(POINTS.filter(lambda points: len(points) > 1), st.data())
def test_between_two_rows_the_cost_is_between_theirs(points: list[int], data: st.DataObject) -> None:
    values = {(point,): float(point % 97 + 1) for point in points}
    place = data.draw(st.integers(min(points), max(points)))
    below, above = max(p for p in points if p <= place), min(p for p in points if p >= place)
    low, high = sorted((values[below,], values[above,]))
    cost = family(values).at(place)
    assert low - 1e-9 <= cost.columns[0] <= high + 1e-9
    assert cost.mark == (EXACT if place in points else INTERPOLATED)


def test_interpolation_is_linear() -> None:
    assert family({(10,): 1.0, (20,): 3.0}).at(15).columns[0] == pytest.approx(2.0)


def test_beyond_the_largest_row_the_cost_grows_as_the_roofline_does() -> None:
    cost = family({(10,): 1.0, (20,): 3.0}).at(40)
    assert (cost.columns[0], cost.mark) == (pytest.approx(6.0), OUTSIDE)


def test_below_the_smallest_row_the_cost_stays() -> None:
    assert family({(10,): 1.0, (20,): 3.0}).at(2).columns[0] == 1.0


def test_two_axes_need_no_full_rectangle() -> None:
    grid = family({(10, 1): 1.0, (10, 5): 5.0, (20, 1): 3.0})
    assert grid.at(10, 3).columns[0] == pytest.approx(3.0)
    # Size 20 was measured for one instance only: three grow from it as the roofline does.
    assert grid.at(20, 3).columns[0] == pytest.approx(9.0)
    assert grid.at(20, 3).mark == OUTSIDE
    assert grid.at(15, 3).columns[0] == pytest.approx((3.0 + 9.0) / 2)


def test_without_a_roofline_ends_are_clamped() -> None:
    ratios = Family({(10,): (1.5,)})
    assert ratios.at(1000).columns == (1.5,)


def test_rows_of_the_degree_go_before_those_of_one_rank() -> None:
    plain = row("gelu", 1.0, width=4, rows=8)
    cut = Row("gelu", {"width": 4, "rows": 8}, 2, row("gelu", 7.0).forward)
    key = key_of("gelu", plain.shape)
    for degree, expected in ((1, 1.0), (2, 7.0), (4, 1.0)):
        found = families((cut, plain), degree, lambda *_: (1.0, 1.0, 1.0, 1.0))
        assert found[key].at(8).columns[0] == expected


@given(POINTS, st.integers(0, 2 * 10**6))
def test_the_neighbours_of_a_value_enclose_it(points: list[int], value: int) -> None:
    points = sorted(points)
    low, high, share = bracket(points, value)
    assert 0.0 <= share < 1.0
    assert 0 <= low <= high < len(points)
    if share:
        assert points[low] < value < points[high]
