"""``ds-dip profile`` as a user runs it: what it refuses, and a run of two ranks that is stopped and continued."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.costs.table import read_table, write_table
from ds_dip.ranks import DeadlineError
from tests.distributed.ranks import PORT
from tests.profiling_cases import table

ROOT = Path(__file__).parent.parent
MODEL = str(ROOT / "model_configs" / "quickstart.json")
SWEEP = {
    "format": "ds-dip/sweep", "version": 1,
    "modules": {"vision": {"sizes": [16, 16], "instances": 2}, "language": {"sizes": [8, 16], "instances": 2}},
    "transfer_bytes": [1024, 4096], "collective_bytes": [1024, 4096], "optimizer_elements": [100, 1000],
}  # fmt: skip


def profile(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["profile", "--model", MODEL, *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--out is missing: where to write the table"),
        (("--check",), "--table is missing"),
        (("--plot", "--check"), "--check and --plot exclude each other"),
        (("--data",), "--out is missing: where to write the histograms"),
        (("--data", "--out", "x.json", "--dataset-options", "[1]"), "expected a JSON object"),
        (("--out", "x.json", "--sweep", "missing.json"), "missing.json: there is no such sweep"),
        (("--out", "x.json", "--dataset-options", "{bad"), "--dataset-options is not JSON"),
        (("--data", "--out", "x.json", "--dataset", "nope"), "'nope' names no callable"),
        (("--data", "--out", "x.json", "--dataset", "os:getcwd"), "gave a str without 'metadata'"),
        (("--data", "--out", "x.json", "--dataset-options", '{"samples": -1}'), "refused the options"),
        (("--data", "--out", "x.json", "--dataset-options", '{"foo": 1}'), "refused the options"),
        (("--out", "x.json", "--model", "nope.json"), "nope.json: there is no such model"),
        (("--ranks", "0", "--out", "x.json"), "--ranks"),
    ],
)
def test_what_cannot_be_done_is_refused_with_status_2(arguments: tuple[str, ...], said: str) -> None:
    result = profile(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert isinstance(result.exception, SystemExit)


def test_a_degree_that_does_not_divide_the_heads_is_refused(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps(SWEEP | {"tensor_parallel": [3]}))
    device = ROOT / "profiling" / "devices" / "h800.json"
    result = profile("--device", device, "--dtype", "bfloat16", "--sweep", sweep, "--out", tmp_path / "t.json")
    assert result.exit_code == 2
    assert "sweep.json: field 'tensor_parallel' has 3, which does not divide the 4 heads of vision" in result.output


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"train_batch_size": 33, "gradient_accumulation_steps": 4}, "{}", "train_batch_size"),
        ({"dip": {"partition": "nowhere.json"}}, "{}", "nowhere.json"),
        ({"dip": {"shedule": "dip"}}, "{}", "shedule"),
        ({}, '{"samples": 8}', "cannot train on the dataset"),
        ({}, '{"foo": 1}', "refused the options"),
    ],
)
def test_a_configuration_is_tried_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], options: str, said: str
) -> None:
    monkeypatch.setattr("ds_dip.profiling.session.run_ranks", lambda *_: pytest.fail("measured"))
    config, sweep = tmp_path / "config.json", tmp_path / "sweep.json"
    given = json.loads((ROOT / "launch" / "quickstart_ds_config.json").read_text())
    config.write_text(json.dumps(given | changes))
    sweep.write_text(json.dumps(SWEEP))
    result = profile("--config", config, "--sweep", sweep, "--out", tmp_path / "t.json", "--dataset-options", options)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_another_machines_table_is_not_continued(tmp_path: Path) -> None:
    sweep, out = tmp_path / "sweep.json", tmp_path / "table.json"
    sweep.write_text(json.dumps(SWEEP))
    write_table(out, table(device="a faraway machine", complete=False))
    result = profile("--sweep", sweep, "--out", out)
    assert result.exit_code == 2
    assert "was measured with device a faraway machine, and this run has" in result.output


def test_a_data_type_that_the_device_has_not_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds_dip.costs.machine.data_types", lambda: ("float32",))
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP))
    result = profile("--sweep", tmp_path / "sweep.json", "--out", tmp_path / "t.json", "--dtype", "float16")
    assert result.exit_code == 2
    assert "does not compute in float16: use one of float32" in result.output


def test_a_device_that_is_not_here_gives_a_table(tmp_path: Path) -> None:
    out, device = tmp_path / "h100.json", ROOT / "profiling" / "devices" / "h100.json"
    sweep = ROOT / "profiling" / "sweeps" / "quickstart.json"
    result = profile("--device", device, "--sweep", sweep, "--dtype", "bfloat16", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    found = read_table(out)
    assert json.loads(result.output)["device"] == found.device == "NVIDIA H100 SXM 80GB"
    assert {row.source for row in found.rows} == {"roofline"}


def test_a_table_is_drawn(tmp_path: Path) -> None:
    write_table(tmp_path / "table.json", table())
    result = profile(
        "--plot", "--table", tmp_path / "table.json", "--out", tmp_path / "table.svg", "--operator", "linear"
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "table.svg").read_text().startswith("<svg")
    wrong = profile("--plot", "--table", tmp_path / "table.json", "--out", tmp_path / "x.svg", "--operator", "conv")
    assert wrong.exit_code == 2
    assert "has no line of three rows of these operators" in wrong.output
    wrong = profile("--plot", "--table", tmp_path / "table.json", "--out", tmp_path / "table.json")
    assert wrong.exit_code == 2
    assert "is read as well and would be replaced" in wrong.output
    assert read_table(tmp_path / "table.json") == table()


def test_data_is_sampled_and_shown(tmp_path: Path) -> None:
    result = profile("--data", "--samples", "50", "--out", tmp_path / "data.json")
    assert result.exit_code == 0, result.output
    assert "50 samples of ds_dip.data.digits:Digits" in " ".join(result.output.split())
    assert (tmp_path / "data.jsonl").exists()


def test_a_deadline_that_is_too_short_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, out = tmp_path / "sweep.json", tmp_path / "table.json"
    sweep.write_text(json.dumps(SWEEP))

    def late(*_: object) -> None:
        write_table(out, table(complete=False))
        raise DeadlineError("rank 0 of worker did not end within 8 s; raise --deadline")

    monkeypatch.setattr("ds_dip.profiling.session.run_ranks", late)
    result = profile("--sweep", sweep, "--out", out, "--deadline", "8")
    assert result.exit_code == 2
    kept = f"within 8 s; raise --deadline or repeat the command: {out} keeps {len(table().rows)} rows"
    assert kept in result.output


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from ds_dip.cli import main; main()", "profile", "--model", MODEL]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip


def rows_of(path: Path) -> Any:
    return read_table(path).rows if path.exists() else ()


def test_a_stopped_run_keeps_its_rows_and_the_next_one_measures_the_rest(tmp_path: Path) -> None:
    sweep, out = tmp_path / "sweep.json", tmp_path / "table.json"
    sweep.write_text(json.dumps(SWEEP))
    arguments = ("--sweep", sweep, "--out", out, "--patience", "0.01", "--master-port", str(PORT))
    process = start(*arguments)
    end = time.monotonic() + 120
    while len(rows_of(out)) < 5 and process.poll() is None and time.monotonic() < end:
        select.select([], [], [], 0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    kept = {row.key: row for row in rows_of(out)}
    assert len(kept) >= 5
    assert not read_table(out).complete
    assert "and the same command measures the rest" in error

    process = start(*arguments)
    output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    found = read_table(out)
    assert found.complete
    now = {row.key: row for row in found.rows}
    assert {key: now[key] for key in kept} == kept
    names = {row.name for row in found.rows}
    assert {"linear", "attention", "packing", "transfer", "all_reduce", "optimizer_step"} <= names
    assert {"layer:decoder_block", "recomputed:encoder_block"} <= names
    assert all(row.source == "measured" and (row.repeats or row.note) for row in found.rows)
    assert f"{out}: {len(found.rows)} rows" in output
    assert (found.ranks, found.threads) == (2, 1)
