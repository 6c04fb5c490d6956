"""``ds-dip rehearse`` and the benchmarks that emulate: real ranks that wait, and one sentence where input is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.commands.rehearse import _show
from ds_dip.data import write_batch
from ds_dip.data.digits import Digits
from ds_dip.models import load_model
from ds_dip.partition import make_partition, write_partition
from ds_dip.reporting.timeline import read_timeline, timelines

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "model_configs" / "quickstart.json"
TABLE = ROOT / "profiling" / "tables" / "xeon-2-cores.float32.json"
MODEL = ["--model", str(QUICKSTART)]
DATASET = ["--dataset", "ds_dip.data.digits:Digits", "--dataset-options", '{"samples": 400}']
SIZE = ["--batch-size", "8", "--microbatches", "4", "--evaluations", "10", "--deadline", "120"]
PARTS = ("plan", "stages", "between", "end")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("rehearsal")
    dataset = Digits(40)
    write_batch(folder / "batch.jsonl", [dataset.metadata(index) for index in range(40)])
    given = ["--data", str(folder / "batch.jsonl"), "--table", str(TABLE), "--dilate", "2", "--steps", "2", "--json"]
    result = run("rehearse", *MODEL, "--ranks", "4", *SIZE, *given, "--timelines", str(folder))
    assert result.exit_code == 0, result.output
    return json.loads(result.output), folder


def test_four_ranks_wait_through_real_plans(rehearsal: tuple[dict[str, Any], Path]) -> None:
    document, _ = rehearsal
    assert document["emulated"] is True
    assert (document["ranks"], document["dilation"], len(document["batches"])) == (4, 2.0, 2)
    assert document["fallbacks"] == {}
    assert document["memory"]["activation_bytes"] > 0
    for batch in document["batches"]:
        parts = sum(batch[name] for name in PARTS)
        assert parts == pytest.approx(batch["measured"] - batch["predicted"], abs=1e-9)
        # Stages and messages never take less than they are told.
        assert batch["measured"] > batch["predicted"] > 0


def test_timelines_are_marked_and_no_stage_is_shorter_than_planned(rehearsal: tuple[dict[str, Any], Path]) -> None:
    _, folder = rehearsal
    found = timelines(folder)
    assert len(found) == 2
    for path in found.values():
        timeline = read_timeline(path)
        assert "emulation" in timeline.schedule
        assert timeline.measured is not None
        planned = {stage.stage: stage.end_s - stage.start_s for stage in timeline.planned.stages}
        for stage in timeline.measured.stages:
            assert stage.end_s - stage.start_s >= planned[stage.stage] - 1e-9


def test_the_table_says_emulation(rehearsal: tuple[dict[str, Any], Path], capsys: pytest.CaptureFixture[str]) -> None:
    _show(rehearsal[0])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("emulation: quickstart on 4 ranks that wait, 2 times as slow")
    assert any(line.startswith("emulation: ") and "beside the simulated" in line for line in lines[1:])


def test_posted_and_blocking_messages_run_the_same_plans() -> None:
    given = [*MODEL, *DATASET, *SIZE, "--dilate", "1", "--blocks", "1", "--iterations", "1", "--json"]
    result = run("bench", "links", "--ranks", "2", *given)
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["emulated"] is True
    assert document["transports"].keys() == {"posted", "blocking"}
    for found in document["transports"].values():
        assert found["seconds"]["median"] >= document["simulated_seconds"] > 0


def test_every_contender_is_emulated() -> None:
    given = [*MODEL, *DATASET, *SIZE, "--dilate", "1", "--blocks", "1", "--iterations", "1", "--json"]
    result = run("bench", "train", "--emulate", "--ranks", "2", "--compute", "bfloat16", *given)
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["emulated"] is True
    found = document["contenders"]
    static = ["DeepSpeed, default cut", "DeepSpeed, best static", "DeepSpeed, best static, balanced"]
    assert list(found) == ["dip", "interleaved 1F1B", *static]
    assert found["interleaved 1F1B"]["schedule"] == "interleaved"
    for name in static:
        assert found[name]["bounds"][0] == 0
        assert found[name]["bounds"][-1] == 14
    for contender in found.values():
        assert contender["seconds"]["median"] > 0
        assert 0 <= contender["bubble"] < 1


def sentence(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


def test_wrong_input_is_one_sentence(tmp_path: Path) -> None:
    rehearse = ["rehearse", *MODEL, "--ranks", "2"]
    odd = ["--batch-size", "9", "--microbatches", "4"]
    assert "9 samples does not divide by 4 microbatches" in sentence(*rehearse, *DATASET, *odd)
    assert "either --data or --dataset" in sentence(*rehearse, *SIZE)
    assert "give the run's --deepspeed-config" in sentence(*rehearse, *DATASET)
    both = ["--table", str(TABLE), "--device", str(ROOT / "profiling" / "devices" / "h800.json")]
    assert "leave one of them out" in sentence(*rehearse, *DATASET, *SIZE, *both)
    path = tmp_path / "partition.json"
    model = load_model(QUICKSTART)
    write_partition(path, model, make_partition(model, 4))
    assert "is for 4 ranks, and --ranks is 2" in sentence(*rehearse, *DATASET, *SIZE, "--partition", str(path))
    assert "6 layers" in sentence("rehearse", *MODEL, "--ranks", "8", *DATASET, *SIZE)
    assert "ds-dip/batch" in sentence(*rehearse, *SIZE, "--data", str(path))
    tiny = ["--memory-gb", "0.000001"]
    assert "rank" in sentence(*rehearse, *DATASET, *SIZE, *tiny)
    assert "--dilate is for --emulate" in sentence("bench", "train", "--dilate", "2")
    assert "--config is for training" in sentence("bench", "train", "--emulate", "--config", str(path))
    assert "give --model as well" in sentence("bench", "links", *DATASET)
