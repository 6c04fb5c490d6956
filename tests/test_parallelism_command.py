"""``ds-dip parallelism`` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.config import read_config
from ds_dip.data import SampleMetadata, write_batch
from ds_dip.data.digits import Digits
from ds_dip.models import load_model
from ds_dip.partition import read_partition

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "model_configs" / "quickstart.json"
TABLE = ROOT / "profiling" / "tables" / "xeon-2-cores.float32.json"
H800 = ROOT / "profiling" / "devices" / "h800.json"
SMALL = ["--pool", "6", "--batches", "1", "--held-out", "1", "--most-laps", "2"]


def run(tmp_path: Path, *arguments: str, gpus: int = 2, batch: int = 16, costs: tuple[str, ...] = ()) -> Result:
    path = tmp_path / "profile.jsonl"
    if not path.exists():
        dataset = Digits(200)
        write_batch(path, [dataset.metadata(index) for index in range(200)])
    size = ["--gpus", str(gpus), "--gpus-per-node", "2", "--global-batch", str(batch)]
    costs = costs or ("--device", str(H800))
    fixed = ["--model", str(MODEL), "--data-profile", str(path), *size, *costs, *SMALL]
    return CliRunner().invoke(cli, ["parallelism", *fixed, *arguments])


def test_a_table_tells_the_best_ten_and_why_the_others_lose(tmp_path: Path) -> None:
    result = run(tmp_path, gpus=4)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("quickstart on 4 GPUs, 2 a node, global batch 16")
    numbered = [line.split()[0] for line in lines[2:] if line[:1].isdigit() and not line.startswith("4 ")]
    assert lines[2].startswith("1 ")
    assert len(numbered) <= 10
    assert any("(+" in line and " ms)" in line for line in lines[3:])
    (counted,) = (number for number, line in enumerate(lines) if "layouts simulated in" in line)
    assert lines[counted - 1].startswith("mean point")
    assert lines[counted + 1].startswith("the first on one held-out batch: ")
    # What the runtime does not run is said without a folder to write to as well.
    assert ["the first cannot be launched" in line for line in lines[counted + 2 :]] == [True] * (
        "separated" not in lines[2]
    )


def test_what_the_runtime_carries_is_written_ready_to_launch(tmp_path: Path) -> None:
    out = tmp_path / "chosen"
    base = str(ROOT / "launch" / "quickstart_ds_config.json")
    more = ["--placement", "separated", "--most-tensor", "1", "--out", str(out), "--deepspeed-config", base, "--json"]
    result = run(tmp_path, *more, costs=("--table", str(TABLE)))
    assert result.exit_code == 0, result.output
    document = json.loads((out / "layouts.json").read_text())
    assert json.loads(result.stdout) == document
    assert min(document["planned"].values()) > 0
    best = document["candidates"][0]
    config = json.loads((out / "ds_config.json").read_text())
    data = best["backbone"]["data_parallel"]
    assert config["train_batch_size"] == 16
    assert config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * data == 16
    assert config["optimizer"] == json.loads(Path(base).read_text())["optimizer"]
    block = read_config(config)
    assert block.memory_strategies == (best["strategy"],)
    assert block.partition == str(out / "partition.json")
    assert block.table == str(TABLE)
    assert read_partition(out / "partition.json", load_model(MODEL)).ranks == best["backbone"]["pipeline_parallel"]


def test_a_contiguous_chain_is_ready_to_launch_too(tmp_path: Path) -> None:
    out = tmp_path / "chosen"
    more = ["--placement", "contiguous", "--most-tensor", "1", "--out", str(out), "--json"]
    best = json.loads(run(tmp_path, *more).stdout)["candidates"][0]
    assert best["placement"] == "contiguous"
    partition = read_partition(out / "partition.json", load_model(MODEL))
    homes = [chunk.rank for chunk in partition.chunks]
    assert homes == sorted(homes)
    assert partition.ranks == best["backbone"]["pipeline_parallel"] == 2
    assert read_config(json.loads((out / "ds_config.json").read_text())).partition == str(out / "partition.json")


def test_memory_is_what_ranks_may_use_for_activations(tmp_path: Path) -> None:
    out = tmp_path / "chosen"
    more = ["--placement", "separated", "--most-tensor", "1", "--out", str(out), "--memory-gb", "0.02"]
    result = run(tmp_path, *more)
    assert result.exit_code == 0, result.output
    config = json.loads((out / "ds_config.json").read_text())
    best = json.loads((out / "layouts.json").read_text())["candidates"][0]
    assert best["memory_bytes"] <= 0.02e9
    for limit, held in zip(config["dip"]["memory_gb"], best["activation_bytes"], strict=True):
        assert held / 1e9 <= limit
    assert config["bf16"] == {"enabled": True}
    read_config(config)


def test_what_the_runtime_cannot_run_is_said_and_not_written(tmp_path: Path) -> None:
    out = tmp_path / "chosen"
    assert run(tmp_path, "--placement", "separated", "--most-tensor", "1", "--out", str(out)).exit_code == 0
    assert (out / "ds_config.json").exists()
    result = run(tmp_path, "--placement", "disaggregated", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "the runtime does not run them yet: choose with --placement separated" in result.output
    assert sorted(path.name for path in out.iterdir()) == ["layouts.json"]


def test_the_mean_point_is_an_objective(tmp_path: Path) -> None:
    ours = json.loads(run(tmp_path, "--json").stdout)
    theirs = json.loads(run(tmp_path, "--json", "--objective", "mean").stdout)
    assert theirs["candidates"][0] == theirs["mean_point"]
    assert ours["mean_point"]["makespans_s"] == theirs["mean_point"]["makespans_s"]
    assert ours["candidates"][0]["mean_s"] <= theirs["candidates"][0]["mean_s"]
    first = theirs["candidates"][0]["mean_s"]
    for row in theirs["candidates"]:
        assert (row["mean_s"] < first) == row["loses"].startswith("faster")


def test_a_profile_names_its_samples(tmp_path: Path) -> None:
    target = tmp_path / "data.json"
    run(tmp_path)
    document = {"format": "ds-dip/data-profile", "version": 1, "batch": "profile.jsonl"}
    target.write_text(json.dumps(document))
    first = run(tmp_path, "--json")
    second = run(tmp_path, "--json", "--data-profile", str(target))
    assert first.stdout == second.stdout
    target.write_text(json.dumps(document | {"batch": "../profile.jsonl"}))
    assert "field 'batch' is '../profile.jsonl'" in run(tmp_path, "--data-profile", str(target)).output


def test_wrong_counts_are_refused_in_a_sentence(tmp_path: Path) -> None:
    assert "3 GPUs are not whole nodes of 2: give a multiple of 2, or fewer" in run(tmp_path, gpus=3).output
    result = CliRunner().invoke(
        cli,
        ["parallelism", "--model", str(MODEL), "--data-profile", str(tmp_path / "profile.jsonl"), "--gpus", "2",
         "--gpus-per-node", "2", "--global-batch", "4"],
    )  # fmt: skip
    assert "give what layers cost: --table, --device, or both" in result.output


def test_a_model_that_no_gpu_holds_is_said_to_be_so(tmp_path: Path) -> None:
    result = run(tmp_path, "--memory-gb", "1e-6", gpus=1, batch=1)
    assert result.exit_code == 2
    assert "no layout of quickstart on 1 GPU fits: its parameters, gradients and optimizer state" in result.output
    assert "smaller global batch" not in result.output


def test_profiles_that_do_not_suit_the_model_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl"
    for sample, sentence in (
        (None, "the data profile holds no sample"),
        (
            SampleMetadata("a", {"audio": (4,), "language": (5,)}, 5),
            "has sizes for audio, which model 'quickstart'",
        ),
        (SampleMetadata("a", {"vision": (16,)}, 0), "give every sample at least one instance of language"),
    ):
        write_batch(path, [] if sample is None else [sample])
        result = run(tmp_path)
        assert result.exit_code != 0
        assert sentence in result.output
        assert "Traceback" not in result.output


def test_texts_alone_and_a_single_gpu_are_layouts_too(tmp_path: Path) -> None:
    write_batch(tmp_path / "profile.jsonl", [SampleMetadata(str(n), {"language": (9 + n,)}, 9) for n in range(20)])
    assert json.loads(run(tmp_path, "--json").stdout)["candidates"]
    alone = json.loads(run(tmp_path, "--json", gpus=1).stdout)
    assert {row["placement"] for row in alone["candidates"]} == {"separated"}
    # A batch that no replicas can share is one replica's.
    single = json.loads(run(tmp_path, "--json", gpus=4, batch=1).stdout)
    assert {row["backbone"]["data_parallel"] for row in single["candidates"]} == {1}


def test_settings_to_keep_are_checked_before_the_search(tmp_path: Path) -> None:
    base, out = tmp_path / "base.json", tmp_path / "chosen"
    for text, sentence in (
        ("[]", "expected a JSON object"),
        ('{"dip": 3}', '"dip" is 3'),
        ('{"dip": {"no": 1}}', "no"),
    ):
        base.write_text(text)
        result = run(tmp_path, "--out", str(out), "--deepspeed-config", str(base))
        assert result.exit_code == 2
        assert sentence in result.output
        assert list(out.iterdir()) == []
