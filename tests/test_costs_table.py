"""The latency table's file: what is written is read back, and what is wrong is named with its place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds_dip.costs.names import is_known
from ds_dip.costs.operators import OPERATORS
from ds_dip.costs.table import LatencyTable, Row, Seconds, read_table, write_table
from ds_dip.files import FileError
from ds_dip.planner.codec import Codec

ROW = Row("linear", {"inputs": 4, "outputs": 8, "bias": 0, "rows": 16}, 2, Seconds(1e-5, 1e-6), Seconds(2e-5),
          Seconds(3e-5, 2e-6), 256.0, 512.0, "measured", 40, "a reason")  # fmt: skip
TABLE = LatencyTable(
    "a device", "float32", "2025-01-01", "a clock", "carefully", {"torch": "2.4"}, 2, 4, {"language/F": 1.1}, False,
    (ROW, Row("transfer", {"bytes": 10}, source="roofline")),
)  # fmt: skip


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "table.json"
    write_table(path, TABLE)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | changes))
    return path


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_table(written(tmp_path)) == TABLE


def test_every_name_that_a_profile_writes_is_known() -> None:
    engine = ("stage:vision", "first:vision", "load:vision", "post:vision", "batch_end")
    assert all(map(is_known, (*OPERATORS, *engine, "layer:head", "recomputed:encoder_block")))


def test_a_table_without_all_its_rows_warns_with_their_number() -> None:
    assert "the latency table is not complete, 2 rows are measured" in TABLE.gap
    assert replace(TABLE, complete=True).gap == ""


def test_a_row_says_all_that_the_format_asks_for(tmp_path: Path) -> None:
    document = json.loads(written(tmp_path).read_text())
    assert (document["format"], document["version"]) == ("ds-dip/latency-table", 1)
    assert {"device", "dtype", "versions", "date", "clock", "method"} <= set(document)
    assert document["rows"][0] == {
        "name": "linear",
        "shape": {"inputs": 4, "outputs": 8, "bias": 0, "rows": 16},
        "tensor_parallel": 2,
        "forward": {"median": 1e-5, "spread": 1e-6},
        "backward_input": {"median": 2e-5, "spread": 0.0},
        "backward_weight": {"median": 3e-5, "spread": 2e-6},
        "kept_bytes": 256.0,
        "peak_bytes": 512.0,
        "source": "measured",
        "repeats": 40,
        "note": "a reason",
    }
    assert document["rows"][1]["source"] == "roofline"


def test_a_table_travels_to_the_planners_process() -> None:
    codec: Codec[LatencyTable] = Codec(LatencyTable, "table")
    assert codec.decode(codec.encode(TABLE)) == TABLE


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": 3}, "field 'device' is 3, expected the device's name"),
        ({"dtype": "float31"}, "field 'dtype' is 'float31', expected one of float64"),
        ({"threads": 0}, "field 'threads' is 0, expected a whole number of at least 1"),
        ({"slowdown": {"x": -1}}, "field 'slowdown.x' is -1, expected a finite number of at least 0"),
        ({"colour": 1}, "the header has the unknown field 'colour'"),
        ({"rows": []}, "has no rows and tells no cost; make the table again"),
        ({"rows": {}}, "field 'rows' is {}, expected a list of rows"),
        ({"rows": [1]}, "field 'rows[0]' is 1, expected an object"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FileError, match=said.replace("[", r"\[")):
        read_table(written(tmp_path, **changes))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "", "rows[0].name' is '', expected an operator's name"),
        ("name", "linaer", "rows[0].name' is 'linaer', expected an operator's name: layer:KIND, linear, "),
        ("name", "layer:decoder_blok", "rows[0].name' is 'layer:decoder_blok', expected an operator's name"),
        ("name", "stage:", "rows[0].name' is 'stage:', expected an operator's name"),
        ("shape", {"rows": 1.5}, "rows[0].shape.rows' is 1.5, expected a whole number"),
        ("shape", {"inputs": 4}, "rows[0].shape' is {'inputs': 4}, expected rows of linear"),
        ("forward", {"median": -1e-6}, "rows[0].forward.median' is -1e-06, expected a finite number of at least 0"),
        ("forward", 1e-6, "rows[0].forward' is 1e-06, expected an object with median and spread"),
        ("source", "guessed", "rows[0].source' is 'guessed', expected one of measured, roofline"),
        ("colour", 1, "rows[0] has the unknown field 'colour'"),
        ("tensor_parallel", True, "rows[0].tensor_parallel' is True, expected a whole number of at least 1"),
    ],
)
def test_a_wrong_row_is_refused(tmp_path: Path, field: str, value: Any, said: str) -> None:
    document = json.loads(written(tmp_path).read_text())
    document["rows"][0][field] = value
    with pytest.raises(FileError) as refused:
        read_table(written(tmp_path, rows=document["rows"]))
    assert said in str(refused.value)


def test_the_same_row_twice_is_refused(tmp_path: Path) -> None:
    document = json.loads(written(tmp_path).read_text())
    with pytest.raises(FileError, match=r"rows\[1\] says linear of .* again"):
        read_table(written(tmp_path, rows=document["rows"][:1] * 2))


def test_another_machine_is_warned_of_with_both_names() -> None:
    assert TABLE.mismatch("a device", 4) == ""
    warning = TABLE.mismatch("another device")
    assert "made on a device, and this is another device" in warning
    assert "with 4 threads a rank, and this rank has 1" in TABLE.mismatch("a device", 1)
