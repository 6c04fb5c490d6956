"""Drawings."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.reproduction import charts

number = st.floats(-1e6, 1e6).map(lambda own: round(own, 3))


def inside(drawing: str) -> bool:
    """Whether it is XML, and marks lie in its box."""
    root = ET.fromstring(charts.alone(drawing))
    wide, high = map(float, root.attrib["viewBox"].split()[2:])
    marks = re.findall(r'points="([^"]*)"', drawing)
    points = [tuple(map(float, own.split(","))) for line in marks for own in line.split()]
    return all(-1 <= x <= wide + 1 and -1 <= y <= high + 1 for x, y in points)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(1e-3, 1e6), number), min_size=1), min_size=1, max_size=9), st.booleans())
def test_lines_stay_in_their_box(lines: list[list[tuple[float, float]]], logarithmic: bool) -> None:
    series = [{"name": f"<{place}>", "points": own} for place, own in enumerate(lines)]
    assert inside(charts.lines(series, "a & b", "x", "y", logarithmic=logarithmic))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=60).filter(str.isprintable), number), max_size=6))
def test_bars_have_their_numbers(values: list[tuple[str, float]]) -> None:
    drawing = charts.bars([("group", values)], "title")
    assert bool(drawing) == bool(values)
    if values:
        ET.fromstring(charts.alone(drawing))
        assert drawing.count(" %</text>") == len(values)


@given(st.lists(st.floats(-0.999, 20.0), min_size=1, max_size=30))
def test_deviations_stay_in_their_box(values: list[float]) -> None:
    assert inside(charts.deviations([("name", own) for own in values], 0.15))


def test_a_half_is_as_far_as_a_double() -> None:
    drawing = charts.deviations([("half", -0.5), ("double", 1.0)], 0.15)
    zero, half, double = (
        float(own) for own in (re.findall(r'points="([\d.]+),', drawing)[0], *re.findall(r'cx="([\d.]+)"', drawing))
    )
    assert abs((zero - half) - (double - zero)) < 0.2


def test_nothing_is_no_drawing() -> None:
    assert charts.lines([], "t", "x", "y") == charts.bars([], "t") == charts.deviations([], 0.1) == ""
