"""A run's costs: every rank reads the same, and what may be wrong with its predictions is in the log."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ds_dip.config import ConfigError, read_config
from ds_dip.costs.machine import device_name
from ds_dip.costs.table import write_table
from ds_dip.runtime import plans
from tests.planner_cases import MODEL
from tests.profiling_cases import table

HERE = table(device=device_name(), threads=plans.torch.get_num_threads())
RULES = {
    "format": "ds-dip/cost-rules",
    "version": 1,
    "rules": [{"module": "vision", "quantity": "forward", "scale": 2.0}],
}


@pytest.fixture
def costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a rank of two reads; the other one reads what ``other`` makes of the first one's digests."""

    def read(document: dict[str, str], compute: str = "float32", other: Any = list) -> Any:
        monkeypatch.setattr(plans, "gather", lambda _, item: [item, other(item)])
        config = read_config({"dip": {name: str(tmp_path / file) for name, file in document.items()}})
        return plans._costs(config, SimpleNamespace(model=MODEL), compute)

    write_table(tmp_path / "table.json", HERE)
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    return read


@pytest.mark.parametrize("complete", [True, False])
def test_training_warns_once_of_a_table_that_is_not_complete(
    costs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(plans.logger, "warning", said.append)
    here = table(device=device_name(), threads=plans.torch.get_num_threads(), complete=complete)
    write_table(tmp_path / "table.json", here)
    assert costs({"table": "table.json"}) == (here, None)
    assert said == ([] if complete else [here.gap])


def test_a_run_without_a_table_and_rules_has_neither(costs: Any) -> None:
    assert costs({}) == (None, None)


@pytest.mark.parametrize(("name", "file", "place"), [("table", "table.json", 0), ("cost_rules", "rules.json", 1)])
def test_ranks_that_read_different_costs_are_refused(costs: Any, name: str, file: str, place: int) -> None:
    assert costs({name: file})[place] is not None
    with pytest.raises(ConfigError, match=f'"dip.{name}" is .*, and rank 1 reads another one than rank 0'):
        costs({name: file}, other=lambda digests: [*digests[:place], "else", *digests[place + 1 :]])


def test_a_table_of_another_data_type_is_refused(costs: Any) -> None:
    with pytest.raises(ConfigError, match="made for float32, and this run trains in bfloat16"):
        costs({"table": "table.json"}, "bfloat16")


@pytest.mark.parametrize("stage", [0, 1])
def test_every_rank_refuses_to_record_into_the_folder_that_is_replayed(tmp_path: Path, stage: int) -> None:
    grid = SimpleNamespace(get_stage_id=lambda: stage, get_data_parallel_rank=lambda: 0)
    module: Any = SimpleNamespace(mpu=lambda: grid)

    def recorder(**block: Any) -> Any:
        return plans.make_recorder(read_config({"dip": block}), module)

    record = {"every": 1, "directory": str(tmp_path / "run")}
    with pytest.raises(ConfigError, match='"dip.record.directory" cannot be used: .* is the folder of "dip.replay"'):
        recorder(record=record, replay=str(tmp_path / "other" / ".." / "run"))
    assert (recorder(record=record, replay=str(tmp_path / "another")) is None) == (stage == 1)
    assert recorder(record={"every": 0}) is None
