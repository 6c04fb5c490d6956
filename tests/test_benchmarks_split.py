"""``ds-dip bench split``: both engines compute the same, and what is measured is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from tests.bench_cases import small_files


def test_split_and_whole_backwards_give_the_same_losses_and_are_compared(tmp_path: Path) -> None:
    options = ["--json", "--blocks", "2", "--iterations", "1", "--wide", "2", "--overhead", "0", *small_files(tmp_path)]
    result = CliRunner().invoke(cli, ["bench", "split", *options])
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["losses"]["split"] == pytest.approx(document["losses"]["whole"], rel=1e-5)
    for name in ("predicted", "span", "whole_over_split", "busy"):
        assert 0 < document[name]["lower_quartile"] <= document[name]["median"] <= document[name]["upper_quartile"]
    assert 0 <= document["put_off"]["median"] <= document["backwards"]
    assert document["fallbacks"] == 0
    assert min(document["peak_bytes"].values()) > 0
