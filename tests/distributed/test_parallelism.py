"""What ``ds-dip parallelism`` writes is launched as it is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from ds_dip.data import write_batch
from ds_dip.data.digits import Digits
from tests.distributed.ranks import EXTENSIONS, PORT, ROOT
from tests.distributed.test_main_job import MODEL, SCRIPT, TOOLS


@pytest.mark.parametrize("placement", ["separated", "contiguous"])
def test_a_chosen_layout_trains_on_two_ranks(tmp_path: Path, placement: str) -> None:
    model, profile, out = tmp_path / "model.json", tmp_path / "profile.jsonl", tmp_path / "chosen"
    model.write_text(json.dumps(MODEL))
    dataset = Digits(64, merge=4)
    write_batch(profile, [dataset.metadata(index) for index in range(64)])
    device = ROOT / "profiling" / "devices" / "h800.json"
    given = ["--model", str(model), "--data-profile", str(profile), "--device", str(device), "--compute", "float32"]
    given += ["--gpus", "2", "--gpus-per-node", "2", "--global-batch", "8", "--out", str(out), "--memory-gb", "1"]
    given += ["--placement", placement, "--most-tensor", "1", "--pool", "4", "--batches", "1", "--held-out", "1"]
    chosen = CliRunner().invoke(cli, ["parallelism", *given])
    assert chosen.exit_code == 0, chosen.output
    mesh = json.loads((out / "layouts.json").read_text())["candidates"][0]["backbone"]
    assert mesh["pipeline_parallel"] * mesh["data_parallel"] == 2
    command = [
        str(TOOLS / "deepspeed"), "--num_gpus", "2", "--master_port", str(PORT), SCRIPT, "--deepspeed",
        "--deepspeed_config", str(out / "ds_config.json"), "--model", str(model), "--steps", "2", "--evaluate", "0",
        "--samples", "64", "--pipeline-ranks", str(mesh["pipeline_parallel"]), "--run-folder", str(tmp_path / "run"),
    ]  # fmt: skip
    own = {"TORCH_EXTENSIONS_DIR": str(EXTENSIONS), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **own}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert sum(summary["fallbacks"].values()) == 0
