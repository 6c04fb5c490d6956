"""``ds-dip bench adaptive`` and ``bench neighbour``: what is slow is slow, what is measured is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.benchmarks.adaptive import FOLLOWED, followed
from ds_dip.cli import cli
from tests.bench_cases import small_files


def test_a_slow_rank_and_a_slow_shape_are_seen_and_followed_by_one_engine_more_than_the_other(tmp_path: Path) -> None:
    options = ["--json", "--steps", "8", "--factor", "4", *small_files(tmp_path)]
    result = CliRunner().invoke(cli, ["bench", "adaptive", *options])
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert list(document["phases"]) == ["steady", "slow rank", "steady again", "slow shape"]
    for name, phase in document["phases"].items():
        assert {len(errors) for errors in phase["errors"].values()} == {8}
        assert phase["tracking_seconds"] > 0
        assert phase["lines_over_adaptive"]["median"] > 0
        if name.startswith("slow"):
            # Sleeps last at least as long as they are told to, on any machine.
            assert phase["errors"]["adaptive"][0] > 0.5


def test_training_beside_a_planner_is_compared_with_training_alone(tmp_path: Path) -> None:
    options = ["--json", "--blocks", "1", "--iterations", "2", "--ranks", "1", *small_files(tmp_path)]
    result = CliRunner().invoke(cli, ["bench", "neighbour", *options])
    assert result.exit_code == 0, result.output
    (document,) = json.loads(result.output)
    assert set(document["seconds"]) == {"alone", "beside a planner"}
    assert document["slowdown"]["median"] > 0
    assert document["spare_cores"] < document["machine"]["cores"]


@given(st.lists(st.floats(-5, 5), max_size=12), st.integers(3, 8))
def test_plans_have_followed_where_the_rest_is_right(before: list[float], rest: int) -> None:
    step = followed([*before, *[0.0] * (rest + len(before))])
    assert step is not None
    assert step <= len(before)


@pytest.mark.parametrize("errors", [[], [0.0], [2 * FOLLOWED] * 9, [0.0, 0.0, 0.0, *[1.0] * 9]])
def test_little_and_wrong_steps_are_not_followed(errors: list[float]) -> None:
    assert followed(errors) is None
