"""A run is recorded and repeated plan by plan, bit for bit, on real ranks; another run is refused on every rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from ds_dip.planner.recording import Recording
from tests.distributed.ranks import run_ranks
from tests.distributed.replay import STEPS

Ranks = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Ranks:
    return run_ranks("tests.distributed.replay", 2, str(folder))


def of(rows: list[dict[str, Any]], case: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["case"] == case]


def test_a_replayed_run_has_the_recorded_plans_losses_and_weights(ranks: Ranks) -> None:
    for rows in ranks:
        (recorded,), (replayed,) = of(rows, "recorded"), of(rows, "replayed")
        assert len(set(recorded["before"]["plans"])) == STEPS - 2
        assert replayed["before"] == recorded["before"]
        assert replayed["after"] == recorded["after"]
        # Also after it was set back to a checkpoint.
        assert replayed["resumed"] == recorded["after"]
        assert replayed["planned"] + replayed["fallbacks"] == STEPS + 2


def test_past_its_end_every_rank_says_so(ranks: Ranks) -> None:
    sentences = {of(rows, "replayed")[0]["past"] for rows in ranks}
    assert len(sentences) == 1
    assert f"holds no step {STEPS}, the recording ends with step {STEPS - 1}" in sentences.pop()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch": 16}, "batch size 8, and this run has 16"),
        ({"samples": 72}, "a dataset of length 64, and this run has 72"),
        ({"seed": 3}, "seed 0, and this run has 3"),
    ],
)
def test_another_run_is_refused_on_every_rank(ranks: Ranks, changes: dict[str, int], sentence: str) -> None:
    found = [row["sentence"] for rows in ranks for row in of(rows, "refused") if row["changes"] == changes]
    assert len(found) == 2
    assert found[0] == found[1]
    assert found[0].startswith('"dip.replay" is ')
    assert sentence in found[0]


def test_what_was_recorded_can_be_looked_at(ranks: Ranks, folder: Path) -> None:
    (first,) = of(ranks[0], "recorded")
    plans = first["before"]["plans"] + first["after"]["plans"]
    for run in ("recorded", "again"):
        recording = Recording(folder / run)
        assert [recording.read(step).plan.hash for step in recording.steps] == plans
    shown = CliRunner().invoke(cli, ["replay", str(folder / "recorded"), "--json", "--worst", str(STEPS)])
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.output)
    assert [row["step"] for row in document["steps"]] == list(range(STEPS))
    for row in document["shown"]:
        total = row["stages_s"] + row["waiting_s"] + row["end_s"]
        assert total == pytest.approx(row["difference_s"])
        assert row["unexplained_s"] == pytest.approx(0.0, abs=1e-9)
        assert row["waiting"]["hidden_s"] <= 1e-9
        assert row["again"]["problem"] == ""
        assert row["again"]["makespan_s"] > 0
