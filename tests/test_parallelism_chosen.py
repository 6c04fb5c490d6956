"""What ``ds-dip parallelism`` writes: into which folders, and what a launch of it reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ds_dip.config import read_config
from tests.test_parallelism_command import ROOT, TABLE, run

RUNS = ("--placement", "separated", "--most-tensor", "1")


@pytest.mark.parametrize("name", ["layouts.json", "partition.json", "ds_config.json"])
def test_files_of_others_are_neither_replaced_nor_removed(tmp_path: Path, name: str) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / name).write_text("{}")
    for placement in ("separated", "disaggregated"):
        result = run(tmp_path, "--placement", placement, "--out", str(out))
        assert result.exit_code == 2
        assert f"{out / name}: is not of an earlier choice of layouts" in result.output
    assert (out / name).read_text() == "{}"
    assert [path.name for path in out.iterdir()] == [name]


def test_what_is_read_is_not_replaced_either(tmp_path: Path) -> None:
    out = tmp_path / "chosen"
    assert run(tmp_path, *RUNS, "--out", str(out)).exit_code == 0
    result = run(tmp_path, *RUNS, "--out", str(out), "--deepspeed-config", str(out / "ds_config.json"))
    assert result.exit_code == 2
    assert f"{out / 'ds_config.json'}: is read as well and would be replaced" in result.output


def test_paths_hold_from_wherever_it_is_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(tmp_path, *RUNS, "--out", "chosen", costs=("--table", os.path.relpath(TABLE)))
    assert result.exit_code == 0, result.output
    block = read_config(json.loads((tmp_path / "chosen" / "ds_config.json").read_text()))
    assert block.partition == str(tmp_path / "chosen" / "partition.json")
    assert block.table == str(TABLE)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dip": {"schedule": "1f1b"}}, '"dip.schedule" is "1f1b", and layouts are chosen for "dip"'),
        ({"dip": {"split_backward": 0.1}}, '"dip.split_backward" is 0.1, and layouts are chosen for null'),
        ({"dip": {"replay": "runs/a"}}, '"dip.replay" is "runs/a", and layouts are chosen for null'),
        ({"zero_optimization": {"stage": 2}}, '"zero_optimization.stage" is 2, which ds_dip does not carry'),
    ],
)
def test_settings_that_no_layout_is_chosen_for_are_refused(
    tmp_path: Path, settings: dict[str, object], sentence: str
) -> None:
    base = tmp_path / "base.json"
    base.write_text(json.dumps(settings))
    result = run(tmp_path, *RUNS, "--deepspeed-config", str(base))
    assert result.exit_code == 2
    assert sentence in result.output


def test_all_that_name_a_data_type_agree_on_it(tmp_path: Path) -> None:
    base, out = tmp_path / "base.json", tmp_path / "chosen"
    base.write_text(json.dumps({"fp16": {"enabled": True, "loss_scale": 8}}))
    costs = ("--device", str(ROOT / "profiling" / "devices" / "h800.json"))
    for more, sentence in (
        (("--compute", "bfloat16"), f"--compute bfloat16 and {base} float16"),
        (("--table", str(TABLE)), f"{TABLE} float32 and {base} float16"),
    ):
        result = run(tmp_path, *RUNS, "--deepspeed-config", str(base), *more, costs=costs)
        assert result.exit_code == 2
        assert sentence in " ".join(result.output.split())
    assert run(tmp_path, *RUNS, "--deepspeed-config", str(base), "--out", str(out), costs=costs).exit_code == 0
    config = json.loads((out / "ds_config.json").read_text())
    assert config["fp16"] == {"enabled": True, "loss_scale": 8}
    assert "bf16" not in config


def test_the_loss_rule_is_that_of_the_settings(tmp_path: Path) -> None:
    base, path = tmp_path / "base.json", tmp_path / "profile.jsonl"
    sample = {"id": "a", "modules": {"language": [5]}, "loss_tokens": 0}
    path.write_text('{"format": "ds-dip/batch", "version": 1}\n' + json.dumps(sample))
    assert "has a supervised token" in run(tmp_path, *RUNS).output
    base.write_text('{"dip": {"loss": "samples"}}')
    assert run(tmp_path, *RUNS, "--deepspeed-config", str(base)).exit_code == 0


def test_samples_are_known_by_what_the_file_holds(tmp_path: Path) -> None:
    first = run(tmp_path, *RUNS, "--json")
    renamed = tmp_path / "samples.txt"
    renamed.write_bytes((tmp_path / "profile.jsonl").read_bytes())
    assert run(tmp_path, *RUNS, "--json", "--data-profile", str(renamed)).stdout == first.stdout


@pytest.mark.parametrize("memory", ["1e9", "1e10", "1e308"])
def test_more_memory_than_there_is_is_used_or_refused(tmp_path: Path, memory: str) -> None:
    result = run(tmp_path, *RUNS, "--memory-gb", memory)
    assert result.exit_code == (0 if memory == "1e9" else 2)
    assert "defect" not in result.output


def test_clusters_that_cannot_be_listed_are_refused(tmp_path: Path) -> None:
    for option in ("--gpus", "--global-batch", "--batches", "--held-out", "--pool"):
        result = run(tmp_path, option, "1000000")
        assert result.exit_code == 2
        assert f"Invalid value for '{option}': 1000000 is not in the range" in result.output


@pytest.mark.parametrize("placement", ["disaggregated", "contiguous"])
def test_one_gpu_has_separated_layouts_only_and_is_told_so(tmp_path: Path, placement: str) -> None:
    result = run(tmp_path, "--placement", placement, gpus=1)
    assert result.exit_code == 2
    assert f"no {placement} layout of quickstart uses all of 1 GPU for" in result.output
    assert "or allow separated layouts" in result.output
