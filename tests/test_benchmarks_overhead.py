"""``ds-dip bench overhead``: both engines compute the same, and what is measured is reported."""

import json

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from ds_dip.ranks import RanksError, result_of


@pytest.fixture(scope="module")
def document() -> dict:
    options = ["--blocks", "2", "--iterations", "1", "--layers", "2", "--hidden", "16", "--length", "8"]
    result = CliRunner().invoke(cli, ["bench", "overhead", "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.parametrize("layers", ["real", "near_empty"])
def test_both_engines_compute_the_same_losses(document: dict, layers: str) -> None:
    losses = document[layers]["losses"]
    assert losses["dip"] == pytest.approx(losses["stock"], rel=1e-5)


@pytest.mark.parametrize("layers", ["real", "near_empty"])
def test_what_is_measured_is_reported(document: dict, layers: str) -> None:
    part = document[layers]
    for name in ("ratio", "cpu_ratio"):
        assert 0 < part[name]["lower_quartile"] <= part[name]["median"] <= part[name]["upper_quartile"]
    assert set(part["seconds"]) == set(part["cpu_seconds"]) == {"dip", "stock"}
    assert part["us_per_instruction"] == pytest.approx(1e6 * part["seconds"]["dip"]["median"] / part["instructions"])
    assert part["fallbacks"] == 0


def test_the_machine_is_described(document: dict) -> None:
    assert {"cores", "threads", "torch", "load", "date"} <= set(document["machine"])


def test_a_rank_that_fails_is_named_with_its_output() -> None:
    with pytest.raises(RanksError, match=r"(?s)rank \d of ds_dip.benchmarks.overhead ended with 1.*unknown_setting"):
        result_of("ds_dip.benchmarks.overhead", 2, {"unknown_setting": 1}, 120)
