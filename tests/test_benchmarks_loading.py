"""``ds-dip bench data``: all contenders train on the same samples, and what is measured is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ds_dip.benchmarks import indexing
from ds_dip.benchmarks.loading import AT_HAND, Held
from ds_dip.cli import cli
from ds_dip.data.conversations import Conversations
from tests.bench_cases import small_files
from tests.media_cases import tiny_model


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    options = ["--samples", "40", "--trained", "16", "--side", "32", "--blocks", "2", "--iterations", "1",
               "--workers", "0", "--workers", "2", *small_files(tmp_path_factory.mktemp("small"))]  # fmt: skip
    result = CliRunner().invoke(cli, ["bench", "data", "--json", *options])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_every_contender_is_reported(document: dict[str, Any]) -> None:
    assert list(document["contenders"]) == [AT_HAND, "0 workers", "2 workers"]
    for own in document["contenders"].values():
        assert 0 < own["waited_share"] < 1
        assert 0 < own["waited_seconds"]["median"] < own["seconds"]["median"]
        assert own["cpu_seconds"]["median"] > 0
    assert document["contenders"][AT_HAND]["over_at_hand"]["median"] == 1.0
    assert document["batch_size"] == 8


def test_the_index_is_reported(document: dict[str, Any]) -> None:
    index = document["index"]
    assert (index["records"], index["images"]) == (40, 40)
    assert index["images_per_s"] == pytest.approx(index["images"] / index["cold_s"])
    assert all(index[name] > 0 for name in ("resumed_from_half_s", "refreshed_records_s", "opened_s"))
    assert index["headers_per_s_one_thread"] > 0


def test_what_is_at_hand_is_what_is_loaded(tmp_path: Path) -> None:
    path, images = indexing.make_media(tmp_path, 6, 40)
    dataset = Conversations(files=str(path), processor={"model": tiny_model(tmp_path)})
    assert sum(len(dataset.metadata(index).modules["vision"]) for index in range(6)) == images == 5
    held = Held(dataset, ["pixels", "labels"])
    for index in range(len(held)):
        id = held.metadata(index).id
        for name, arrays in dataset.load(id, ["labels", "pixels"]).items():
            assert [own.tolist() for own in held.load(id, [name])[name]] == [own.tolist() for own in arrays]
