"""``ds-dip partition`` at the command line."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.data import write_batch
from ds_dip.data.digits import Digits
from ds_dip.models import load_model
from ds_dip.partition import read_partition
from tests.partition_cases import CONFIGS, QUICKSTART

CONFIG = Path(__file__).resolve().parent.parent / "launch" / "quickstart_ds_config.json"
TABLE = CONFIG.parent.parent / "profiling" / "tables" / "xeon-2-cores.float32.json"
H800 = CONFIG.parent.parent / "profiling" / "devices" / "h800.json"
CUT = ["--laps", "vision=2", "--laps", "language=2", "--sub-microbatch", "vision=8"]
SIZE = ["--batch-size", "16", "--microbatches", "4", "--batches", "2", "--evaluations", "20"]
DATASET = ["--dataset", "ds_dip.data.digits:Digits", "--dataset-options", '{"samples": 400}']


def run(out: Path, *arguments: str, ranks: int = 2, model: str = "quickstart") -> Result:
    fixed = ["--model", str(CONFIGS / f"{model}.json"), "--ranks", str(ranks), "--out", str(out)]
    return CliRunner().invoke(cli, ["partition", *fixed, *arguments])


def test_a_table_is_shown_and_the_file_is_what_training_reads(tmp_path: Path) -> None:
    result = run(tmp_path / "p.json", *SIZE, *DATASET)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("quickstart on 2 ranks, mean of 2 batches")
    assert lines[2].startswith("rule")
    assert "+0.00 %" in lines[2]
    assert f"{tmp_path / 'p.json'}: written" in lines
    assert read_partition(tmp_path / "p.json", QUICKSTART).ranks == 2
    assert f'"dip": {{"partition": "{tmp_path / "p.json"}"}}' in lines[-1]
    assert "kept, it was made from the same inputs" in run(tmp_path / "p.json", *SIZE, *DATASET).output
    assert ": written" in run(tmp_path / "p.json", *SIZE, *DATASET, "--again").output


def test_json_is_the_file(tmp_path: Path) -> None:
    result = run(tmp_path / "p.json", *SIZE, *DATASET, "--json")
    assert json.loads(result.stdout) == json.loads((tmp_path / "p.json").read_text())


def test_metadata_in_a_file_gives_what_the_dataset_gives(tmp_path: Path) -> None:
    dataset = Digits(400)
    write_batch(tmp_path / "batch.jsonl", [dataset.metadata(index) for index in range(400)])
    run(tmp_path / "a.json", *SIZE, *DATASET)
    run(tmp_path / "b.json", *SIZE, "--data", str(tmp_path / "batch.jsonl"))
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_runs_configuration_says_how_it_trains(tmp_path: Path) -> None:
    more = ["--deepspeed-config", str(CONFIG), "--batches", "1", "--evaluations", "5"]
    assert run(tmp_path / "p.json", *more, *DATASET).exit_code == 0
    search = json.loads((tmp_path / "p.json").read_text())["search"]
    config = json.loads(CONFIG.read_text())
    assert search["samples"] == config["train_batch_size"]
    assert search["microbatches"] == config["gradient_accumulation_steps"]


def test_what_is_fixed_is_kept(tmp_path: Path) -> None:
    fixed = ["--laps", "vision=1", "--sub-microbatch", "vision=whole", "--parts", "language=2,2,2,2"]
    result = run(tmp_path / "p.json", *SIZE, *DATASET, *fixed)
    assert result.exit_code == 0, result.output
    modules = json.loads((tmp_path / "p.json").read_text())["modules"]
    assert (modules["vision"]["laps"], modules["vision"]["sub_microbatch"], modules["language"]["laps"]) == (1, None, 2)
    assert [own["stop"] for own in modules["language"]["chunks"]] == [2, 4, 6, 8]


def test_rates_change_the_prediction(tmp_path: Path) -> None:
    means = []
    for rate in ("layer_overhead=0", "layer_overhead=1e-2"):
        assert run(tmp_path / "p.json", *SIZE, *DATASET, "--rate", rate).exit_code == 0
        means.append(json.loads((tmp_path / "p.json").read_text())["search"]["rule"]["mean_s"])
    assert means[0] < means[1]


def test_a_table_and_a_device_price_what_a_roofline_would_guess(tmp_path: Path) -> None:
    rows = {}
    for name, option in (("roofline", []), ("table", ["--table", str(TABLE)]), ("device", ["--device", str(H800)])):
        result = run(tmp_path / f"{name}.json", *SIZE, *DATASET, *option)
        assert result.exit_code == 0, result.output
        rows[name] = json.loads((tmp_path / f"{name}.json").read_text())
    assert rows["table"]["table_sha256"] == hashlib.sha256(TABLE.read_bytes()).hexdigest()
    means = {name: row["search"]["rule"]["mean_s"] for name, row in rows.items()}
    assert means["device"] < means["table"]
    assert len(set(means.values())) == 3


def test_with_measured_costs_whole_microbatches_and_one_lap_are_found(tmp_path: Path) -> None:
    more = ["--table", str(TABLE), "--batch-size", "64", "--microbatches", "8", *DATASET, "--batches", "2"]
    assert run(tmp_path / "found.json", *more).exit_code == 0
    assert run(tmp_path / "cut.json", *more, *CUT).exit_code == 0
    found, cut = (json.loads((tmp_path / name).read_text()) for name in ("found.json", "cut.json"))
    assert {name: (own["laps"], own["sub_microbatch"]) for name, own in found["modules"].items()} == {
        "vision": (1, None),
        "language": (1, None),
    }
    assert found["search"]["candidates"][0]["mean_s"] < cut["search"]["candidates"][0]["mean_s"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*DATASET], "--deepspeed-config, or --batch-size and --microbatches"),
        ([*SIZE], "either --data or --dataset"),
        ([*SIZE, *DATASET, "--data", "x.jsonl"], "either --data or --dataset"),
        ([*SIZE, "--data", "no.jsonl"], "no.jsonl: cannot be read"),
        ([*SIZE, "--dataset", "digits"], "'digits' names no callable"),
        ([*SIZE, "--dataset", "a:b", "--dataset-options", "{"], "--dataset-options is not JSON"),
        ([*SIZE, *DATASET, "--batch-size", "1000"], "1000 samples and the dataset holds 400"),
        ([*SIZE, *DATASET, "--rate", "flop=1"], "--rate flop=1: use one of flops, memory"),
        ([*SIZE, *DATASET, "--rate", "flops=many"], "--rate flops=many: 'many' is not a number"),
        ([*SIZE, *DATASET, "--rate", "flops=0"], "rate 'flops' is 0.0: give a finite number above 0"),
        ([*SIZE, *DATASET, "--laps", "vision"], "'vision' is not NAME=VALUE"),
        ([*SIZE, *DATASET, "--laps", "vision=2.5"], "--laps vision=2.5: '2.5' is not a whole number"),
        ([*SIZE, *DATASET, "--laps", "vision=9"], "set its laps to 3"),
        ([*SIZE, *DATASET, "--parts", "language=4,3"], "sum 7"),
        ([*SIZE, *DATASET, "--memory-gb", "0.001"], "no partition of quickstart on 2 ranks fits"),
        ([*SIZE, *DATASET, "--table", "no.json"], "no.json: cannot be read"),
        ([*SIZE, *DATASET, "--table", str(TABLE), "--compute", "bfloat16"], "made for float32, and the run is in bf"),
        ([*SIZE, *DATASET, "--table", str(TABLE), "--device", str(H800)], "--device is for a roofline, and .*json"),
        ([*DATASET, "--deepspeed-config", "no.json"], "no.json: cannot be read"),
        ([*DATASET, "--microbatches", "4"], "train_batch_size is missing"),
        ([*SIZE, *DATASET, "--tensor-parallel", "3"], "vision has 4 heads, which do not divide among 3"),
        ([*SIZE, *DATASET, "--table", str(TABLE), "--tensor-parallel", "3"], "which do not divide among 3"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_sentence(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(tmp_path / "p.json", *arguments)
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "p.json").exists()
    assert_matches(message, result.output)


def test_what_is_read_is_not_replaced(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_bytes((CONFIGS / "quickstart.json").read_bytes())
    result = CliRunner().invoke(cli, ["partition", "--model", str(model), "--ranks", "2", "--out", str(model), *SIZE])
    assert result.exit_code == 2
    assert f"{model}: is read as well and would be replaced" in result.output
    assert load_model(model) == QUICKSTART


def assert_matches(pattern: str, output: str) -> None:
    """The pattern is in the output, wherever its lines break."""
    assert re.search(pattern, " ".join(output.split())), output


def test_fewer_layers_than_ranks_are_refused_with_the_way_out(tmp_path: Path) -> None:
    result = run(tmp_path / "p.json", *SIZE, *DATASET, ranks=7)
    assert result.exit_code == 2
    assert "6 layers, but 7 ranks x 1 laps need 7 chunks of at least one layer: use at most 6" in result.output


@pytest.mark.parametrize(("model", "ranks"), [("vlm_s", 4), ("vlm_m", 4), ("vlm_l", 8)])
def test_the_papers_models_are_partitioned(tmp_path: Path, model: str, ranks: int) -> None:
    write_batch(tmp_path / "b.jsonl", packed(8))
    more = ["--data", str(tmp_path / "b.jsonl"), "--batch-size", "8", "--microbatches", "8", "--evaluations", "1"]
    rates = ["--rate", "flops=1.6e15", "--rate", "memory=8e12", "--rate", "link=5e10", "--compute", "bfloat16"]
    result = run(tmp_path / "p.json", *more, *rates, ranks=ranks, model=model)
    assert result.exit_code == 0, result.output
    partition = read_partition(tmp_path / "p.json", load_model(CONFIGS / f"{model}.json"))
    assert {chunk.rank for chunk in partition.chunks} == set(range(ranks))


def test_a_rank_of_several_devices_is_scored_by_one_of_them(tmp_path: Path) -> None:
    clips = ["--dataset", "ds_dip.data.clips:PackedClips", "--dataset-options", '{"samples": 40}']
    size = ["--batch-size", "4", "--microbatches", "4", "--batches", "1", "--evaluations", "1", "--device", str(H800)]
    found = []
    for degree, more in ((1, []), (4, []), (4, ["--no-sequence-parallel"]), (4, ["--replicas", "2"])):
        options = ["--compute", "bfloat16", "--tensor-parallel", str(degree), "--link", "network", *more]
        result = run(tmp_path / "p.json", *clips, *size, *options, ranks=4, model="t2v_s")
        assert result.exit_code == 0, result.output
        found.append(json.loads((tmp_path / "p.json").read_text()))
    kept = [
        sum(chunk["activation_bytes"] for module in own["modules"].values() for chunk in module["chunks"])
        for own in found
    ]
    # All but the embedding of text is shared.
    assert kept[0] / 4 < kept[1] < 1.01 * kept[0] / 4
    assert kept[1] < kept[2] < kept[0]
    held = [sum(rank["state_bytes"] for rank in own["memory"]) for own in found]
    assert held[3] < held[1] < held[0] / 2
    seconds = [own["search"]["candidates"][0]["mean_s"] for own in found]
    assert seconds[0] / 4 < seconds[1] < seconds[2] < seconds[0]
    assert len({own["inputs_sha256"] for own in found}) == 4


def packed(count: int) -> list[Any]:
    from ds_dip.data import SampleMetadata

    return [
        SampleMetadata(
            str(number),
            {"vision": (2704,) * (6 * number % 49), "language": (8192,)},
            8192 - 169 * (6 * number % 49),
            {"vision": (169,) * (6 * number % 49), "language": (8192,)},
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("given", ["nan", "inf"])
def test_memory_without_a_number_is_refused(tmp_path: Path, given: str) -> None:
    result = run(tmp_path / "p.json", *SIZE, *DATASET, "--memory-gb", given)
    assert result.exit_code == 2
    assert "'--memory-gb'" in result.output
    assert f"{given}" in result.output


def test_a_table_that_does_not_reach_the_model_is_warned_of(tmp_path: Path) -> None:
    fits = run(tmp_path / "p.json", *SIZE, *DATASET, "--table", str(TABLE))
    assert "warning" not in fits.stderr
    far = run(tmp_path / "far.json", *SIZE, *DATASET, "--table", str(TABLE), model="vlm_s")
    assert far.exit_code == 0, far.output
    (line,) = [line for line in far.stderr.splitlines() if line.startswith("warning")]
    assert "100% of the layers' predicted time is outside of what was measured" in line


def test_a_table_with_gaps_is_warned_of(tmp_path: Path) -> None:
    document = json.loads(TABLE.read_text())
    (tmp_path / "table.json").write_text(json.dumps(document | {"complete": False}))
    result = run(tmp_path / "p.json", *SIZE, *DATASET, "--table", str(tmp_path / "table.json"))
    assert f"the latency table is not complete, {len(document['rows'])} rows are measured" in result.stderr
