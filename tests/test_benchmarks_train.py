"""``ds-dip bench train``: every contender computes the same loss, and what is measured is reported."""

import json

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from tests.bench_cases import small_files

CONTENDERS = {
    "dip",
    "parameters",
    "best static",
    "best static, balanced",
    "torch 1F1B, padded",
    "torch interleaved 1F1B, padded",
}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("bench")
    files = small_files(folder)
    result = CliRunner().invoke(cli, ["bench", "train", "--json", "--blocks", "2", "--iterations", "1", *files])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_every_contender_computes_the_same_loss(document: dict) -> None:
    assert set(document["contenders"]) == CONTENDERS
    assert document["refused"] == {}
    first = {found["losses"][0] for found in document["contenders"].values()}
    assert max(first) == pytest.approx(min(first), rel=1e-5)


@pytest.mark.parametrize("name", sorted(CONTENDERS))
def test_what_is_measured_is_reported(document: dict, name: str) -> None:
    found = document["contenders"][name]
    for part in ("seconds", "cpu_seconds", "over_dip"):
        assert 0 < found[part]["lower_quartile"] <= found[part]["median"] <= found[part]["upper_quartile"]
    assert 0 <= found["bubble"] < 1
    assert found["peak_bytes"] > 0


def test_the_best_static_split_covers_the_chain_of_layers(document: dict) -> None:
    layers = len(document["layer_seconds"])
    for name in CONTENDERS - {"dip"}:
        bounds = document["contenders"][name]["bounds"]
        assert bounds[0] == 0
        assert bounds[-1] == layers
        assert bounds == sorted(set(bounds))
    assert document["contenders"]["best static"]["bounds"] == document["contenders"]["best static, balanced"]["bounds"]
