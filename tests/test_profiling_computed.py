"""Tables of devices that are not here: every row computed, and marked so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds_dip.costs.composed import TableCosts
from ds_dip.costs.roofline import operator_columns
from ds_dip.costs.table import read_table, write_table
from ds_dip.profiling.computed import computed_table
from tests.profiling_cases import DEVICE, MODEL, SWEEP, sizes, table


def test_every_row_says_that_it_was_computed(tmp_path: Path) -> None:
    write_table(tmp_path / "table.json", table())
    found = read_table(tmp_path / "table.json")
    assert {row.source for row in found.rows} == {"roofline"}
    assert found.device == DEVICE.name
    assert "made up" in found.method


def test_rows_are_the_rooflines() -> None:
    rates = DEVICE.rates("bfloat16")
    for row in computed_table(DEVICE, MODEL, SWEEP, "bfloat16", 2, "node").rows:
        columns = operator_columns(row.name, row.shape, rates)
        seconds = row.forward.median, row.backward_input.median, row.backward_weight.median
        assert (*seconds, row.kept_bytes) == pytest.approx(columns)


def test_a_slower_link_is_slower() -> None:
    near, far = (TableCosts(MODEL, computed_table(DEVICE, MODEL, SWEEP, "float32", 2, link)) for link in
                 ("node", "network"))  # fmt: skip
    assert far.transfer(65536) > 5 * near.transfer(65536)
    assert far.forward("language", 1, 2, sizes(16)) == near.forward("language", 1, 2, sizes(16))
