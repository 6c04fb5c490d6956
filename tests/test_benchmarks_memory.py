"""``ds-dip bench memory``: every strategy's memory is predicted, and less is kept for more that runs again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from tests.bench_cases import small_files


def test_strategies_are_measured_beside_what_is_predicted(tmp_path: Path) -> None:
    options = ["--json", "--blocks", "1", "--iterations", "1", "--limit", "0.8", *small_files(tmp_path)]
    # Activations that are larger than the model's tables of positions, which are made once for every batch's sizes.
    config = json.loads(Path(options[-1]).read_text())
    config |= {"train_batch_size": 96, "train_micro_batch_size_per_gpu": 24}
    Path(options[-1]).write_text(json.dumps(config))
    result = CliRunner().invoke(cli, ["bench", "memory", *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)["contenders"]
    assert list(found) == ["none", "selective", "full", "within 80%"]
    for row in found.values():
        assert row["predicted_bytes"] == pytest.approx(row["measured_bytes"], rel=0.05)
        assert row["over_none"]["median"] > 0
    for rank in range(2):
        kept, some, least, within = (row["measured_bytes"][rank] for row in found.values())
        assert least < some < kept
        assert within <= 0.81 * found["none"]["predicted_bytes"][rank]
    assert [set(row["stages"]) for row in list(found.values())[:3]] == [{"none"}, {"selective"}, {"full"}]
