"""``ds-dip bench balance``: samples from a file, a dataset or a model's costs, compared with simpler ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ds_dip.balancing import METHODS
from ds_dip.cli import cli
from ds_dip.data import SampleMetadata, write_batch
from ds_dip.data.questions import ImageQuestions
from tests.bench_cases import small_files

ROOT = Path(__file__).parent.parent


def measured(*arguments: str) -> dict[str, Any]:
    answer = CliRunner().invoke(cli, ["bench", "balance", "--json", *arguments])
    assert answer.exit_code == 0, answer.output
    document: dict[str, Any] = json.loads(answer.output)
    return document


def test_a_batch_is_balanced_as_a_whole(tmp_path: Path) -> None:
    drawn = ImageQuestions(200)
    write_batch(tmp_path / "batch.jsonl", [drawn.metadata(index) for index in range(200)])
    document = measured("--batch", str(tmp_path / "batch.jsonl"), "--microbatches", "10", "--exact", "0.1")
    assert document["modules"] == ["vision", "language"]
    assert (document["samples"], document["microbatches"]) == (200, 10)
    assert document["milliseconds"] > 0
    (row,) = document["sizes"]
    assert row["compared"].keys() == METHODS.keys()
    assert 1 <= row["exact"]["over_bound"] <= document["over_bound"] <= row["compared"]["lpt"]["over_bound"]
    assert row["compared"]["lpt"]["over_bound"] <= row["compared"]["round-robin"]["over_bound"]


def test_samples_cost_what_a_model_s_roofline_says() -> None:
    model, device = ROOT / "model_configs" / "vlm_s.json", ROOT / "profiling" / "devices" / "h800.json"
    drawn = ("--dataset", "ds_dip.data.questions:ImageQuestions", "--dataset-options", '{"samples": 150}')
    document = measured(*drawn, "--model", str(model), "--device", str(device))
    assert [row["samples"] for row in document["sizes"]] == [64, 128]
    assert document["over_bound"] <= 1.01
    # Without costs a token is a token; with them, two modules of other widths come out otherwise.
    assert measured(*drawn)["sizes"][0]["compared"] != document["sizes"][0]["compared"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", str(ROOT / "model_configs" / "vlm_s.json")), "--model and --device go together"),
        (("--dataset", "a:b", "--batch", str(ROOT / "setup.cfg")), "give one of them"),
        (("--dataset", "ds_dip.data.questions:ImageQuestions", "--dataset-options", "{"), "is not JSON"),
        (("--dataset", "ds_dip.data.questions:ImageQuestions", "--dataset-options", "[]"), "expected a JSON object"),
        (("--dataset", "ds_dip.nothing:here"), "cannot be imported"),
        (("--dataset-options", '{"samples": 3}'), "--dataset-options are those of --dataset"),
        (("--microbatches", "2049"), "--microbatches 2049 are more than there are samples in a batch, 2048"),
        (("--dataset", "ds_dip.data.omnibal:OmniBal", "--dataset-options", '{"path": 0}'), "refused the options"),
        (("--train", "--model", str(ROOT / "model_configs" / "qwen2_5_vl_7b")), "is a folder"),
        (("--dataset", "os:getcwd"), "gave a str without 'metadata'"),
        (("--dataset", "ds_dip.data.questions:ImageQuestions", "--dataset-options", '{"samples": 0}'), "samples is 0"),
    ],
)
def test_what_it_cannot_measure_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    answer = CliRunner().invoke(cli, ["bench", "balance", *arguments])
    assert answer.exit_code == 2
    assert sentence in answer.output


def test_an_empty_batch_is_refused(tmp_path: Path) -> None:
    write_batch(tmp_path / "batch.jsonl", [])
    answer = CliRunner().invoke(cli, ["bench", "balance", "--batch", str(tmp_path / "batch.jsonl")])
    assert answer.exit_code != 0
    assert "holds no sample" in answer.output
    write_batch(tmp_path / "batch.jsonl", [SampleMetadata("bare", {}, 0)])
    answer = CliRunner().invoke(cli, ["bench", "balance", "--batch", str(tmp_path / "batch.jsonl")])
    assert answer.exit_code == 2
    assert "has anything for a module" in answer.output


def test_two_replicas_train_alike_with_samples_balanced_and_in_turn(tmp_path: Path) -> None:
    options = ["--train", "--json", "--wide", "1", "--blocks", "2", "--iterations", "2", *small_files(tmp_path)]
    document = measured(*options)
    assert set(document["seconds"]) == {"balanced", "in turn"}
    # The same global batches on the same weights: the loss of the second step rests on the gradients of the first.
    ours, theirs = document["losses"]["balanced"], document["losses"]["in turn"]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[0] != ours[1]
    assert all(share >= 0 for share in document["slowest_replica"].values())
    assert document["heaviest_replica"]["balanced"] < document["heaviest_replica"]["in turn"]
    assert document["in_turn_over_balanced"]["median"] > 0
    assert document["busiest_in_turn_over_balanced"]["median"] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(("--blocks", "3"), "--blocks is for --train"), (("--train", "--exact", "1"), "--exact is not with --train")],
)
def test_options_of_the_other_measurement_are_refused(arguments: tuple[str, ...], sentence: str) -> None:
    answer = CliRunner().invoke(cli, ["bench", "balance", *arguments])
    assert answer.exit_code == 2
    assert sentence in answer.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--patch", "3"), "patch"),
        (("--samples", "100000000"), "1<=x<=1024"),
        (("--model", str(ROOT / "model_configs" / "vlm_s.json")), "the digits need an encoder named vision"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_ranks_start(arguments: tuple[str, ...], sentence: str) -> None:
    answer = CliRunner().invoke(cli, ["bench", "balance", "--train", *arguments])
    assert answer.exit_code == 2
    assert sentence in answer.output
    assert "Traceback" not in answer.output


def test_the_table_names_every_way() -> None:
    answer = CliRunner().invoke(
        cli,
        [
            "bench",
            "balance",
            "--dataset",
            "ds_dip.data.questions:ImageQuestions",
            "--dataset-options",
            '{"samples": 64}',
        ],
    )
    assert answer.exit_code == 0
    assert all(name in answer.output for name in METHODS)
    assert "by the tokens of vision, language" in answer.output


def test_batches_that_have_a_sample_for_each_microbatch_are_balanced() -> None:
    assert [row["samples"] for row in measured("--microbatches", "300")["sizes"]] == [512, 1024, 2048]


def test_a_folder_of_transformers_is_a_model_too() -> None:
    document = measured("--model", "qwen2_5_vl_7b", "--device", "h800")
    assert document["unit"] == "seconds"
    assert document["over_bound"] >= 1
