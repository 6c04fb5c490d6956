"""A run's latency table: what may be wrong with its predictions is in the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ds_dip.costs.machine import device_name
from ds_dip.costs.table import write_table
from ds_dip.runtime import plans
from tests.profiling_cases import table


def alone(into: list[Any], item: Any) -> None:
    into[0] = item


@pytest.mark.parametrize("complete", [True, False])
def test_training_warns_once_of_a_table_that_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(plans.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(plans.torch.distributed, "all_gather_object", alone)
    monkeypatch.setattr(plans.logger, "warning", said.append)
    here = table(device=device_name(), threads=plans.torch.get_num_threads(), complete=complete)
    write_table(tmp_path / "table.json", here)
    assert plans._table(str(tmp_path / "table.json"), "float32") == here
    assert said == ([] if complete else [here.gap])
