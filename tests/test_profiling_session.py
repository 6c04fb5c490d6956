"""What a run of ds-dip profile continues, and which dataset it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds_dip.costs.machine import processor, versions
from ds_dip.costs.table import LatencyTable, Row, write_table
from ds_dip.files import FileError
from ds_dip.models import load_model
from ds_dip.models.spec import Model
from ds_dip.profiling.session import Company, dataset_for, unfinished

QUICKSTART = load_model(Path(__file__).parent.parent / "model_configs" / "quickstart.json")
TABLE = LatencyTable(
    "here", "float32", versions=versions(), ranks=2, threads=1, complete=False, rows=(Row("batch_end", {}),)
)


def test_an_earlier_runs_table_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    assert unfinished(path, Company(), "float32", "here") is None
    write_table(path, TABLE)
    assert unfinished(path, Company(), "float32", "here") == TABLE


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "there"}, "was measured with device there, and this run has here"),
        ({"dtype": "bfloat16"}, "with data type bfloat16, and this run has float32"),
        ({"ranks": 4}, "with ranks 4, and this run has 2"),
        ({"threads": 8}, "with threads 8, and this run has 1"),
        ({"versions": {"torch": "1.0"}}, "with torch 1.0, and this run has"),
    ],
)
def test_rows_of_another_measurement_do_not_mix(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "table.json"
    write_table(path, replace(TABLE, **changes))
    with pytest.raises(FileError, match=said):
        unfinished(path, Company(), "float32", "here")


def test_the_quickstarts_digits_are_cut_as_its_encoder_does_it() -> None:
    reference = dataset_for(QUICKSTART, None, {})
    assert (reference.options["patch"], reference.options["merge"]) == (2, 16)
    assert reference.open().metadata(3).modules


def test_another_model_needs_its_own_dataset() -> None:
    text = Model("text", QUICKSTART.modules[1:])
    with pytest.raises(FileError, match="name your own dataset by --dataset"):
        dataset_for(text, None, {})
    assert dataset_for(text, "my.data:Set", {"size": 3}).factory == "my.data:Set"


def test_a_processor_tells_its_cores() -> None:
    assert processor().endswith("cores")
