"""The drawing of a table: a panel a line, with how far interpolation is off."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from ds_dip.costs.operators import OPERATORS
from ds_dip.costs.table import LatencyTable
from ds_dip.profiling.plot import panels, svg
from tests.profiling_cases import row, table

ROWS = tuple(row("gelu", seconds, 2 * seconds, width=4, rows=rows)
             for rows, seconds in ((10, 1e-5), (20, 3e-5), (30, 3e-5)))  # fmt: skip


def test_a_panel_has_its_rows_in_order_and_their_errors() -> None:
    (panel,) = panels(LatencyTable("here", "float32", rows=ROWS[::-1]))
    assert [r.shape["rows"] for r in panel.rows] == [10, 20, 30]
    # Half way between 1e-5 and 3e-5 is 2e-5, where 3e-5 was measured; the backward, which is larger, counts.
    assert panel.errors() == (None, pytest.approx(1 / 3), None)


def test_lines_too_short_to_judge_are_left_out() -> None:
    assert panels(LatencyTable("here", "float32", rows=ROWS[:2])) == []


def test_operators_can_be_chosen() -> None:
    everything = panels(table())
    assert {panel.title.split()[0] for panel in everything} <= set(OPERATORS)
    assert len(panels(table(), ["linear"])) < len(everything)


def test_the_drawing_is_xml_with_a_dot_a_row_and_names_the_device() -> None:
    drawn = panels(LatencyTable("here & there", "float32", rows=ROWS))
    text = svg(replace(table(), device="here & there"), drawn)
    root = ET.fromstring(text)
    assert text.count("<circle") == 2 * len(ROWS)
    assert "here & there" in "".join(root.itertext())
