"""What DeepSpeed's users rely on holds, and its own pipeline engine's defects are absent (real ranks, started once)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import run_ranks


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("monitor")
    return [row for rank in run_ranks("tests.distributed.usage", 2, str(folder)) for row in rank]


def of(rows: list[dict[str, Any]], case: str, **wanted: Any) -> list[dict[str, Any]]:
    found = [row for row in rows if row["case"] == case and all(row[name] == wanted[name] for name in wanted)]
    assert len(found) == 2
    return found


@pytest.mark.parametrize(("mode", "bound"), [("fp32", 1e-5), ("zero1", 1e-5), ("bf16-accumulate", 0.1)])
def test_an_update_is_clipped_by_the_norm_of_the_whole_model(rows: Any, mode: str, bound: float) -> None:
    for row in of(rows, "clipping", mode=mode):
        assert row["norm"] > 0.05
        assert row["told"] == pytest.approx(row["norm"], rel=bound)
        assert row["error"] <= bound


def test_scheduler_counts_monitor_and_breakdown_work(rows: Any) -> None:
    for row in of(rows, "options"):
        assert row["steps"] == 4
        assert row["samples"] == 3 * 3 + 6
        assert row["rates"] == sorted(row["rates"])
        assert 0.0 <= row["rates"][0] < row["rates"][-1] <= 0.01
    files = of(rows, "options")[0]["files"]
    assert any("train_loss" in name for name in files)
    assert any("bubble_pct" in name for name in files), files


def test_another_batch_size_keeps_the_gradient_that_of_the_whole_batch(rows: Any) -> None:
    for row in of(rows, "resized"):
        assert row["error"] <= 1e-5
        assert row["samples"] == 6


@pytest.mark.parametrize("where", ["vision", "labels"])
def test_a_nan_stops_every_rank_before_the_step_and_is_named(rows: Any, where: str) -> None:
    first, second = of(rows, "nonfinite", policy="stop", where=where)
    assert first["error"] == second["error"]
    module = "vision" if where == "vision" else "language"
    assert f"the loss of {module} chunk" in first["error"]
    assert "microbatch" in first["error"]
    assert first["kept"]
    assert second["kept"]


@pytest.mark.parametrize("where", ["vision", "labels"])
def test_a_nan_is_skipped_and_leaves_nothing_behind(rows: Any, where: str) -> None:
    for row in of(rows, "nonfinite", policy="skip", where=where):
        assert row["error"] == ""
        assert row["kept"]
        assert row["skipped"] == 1
        assert row["finite"]
        assert row["moved"] > 0.0


def test_a_rank_without_trainable_parameters_runs(rows: Any) -> None:
    for row in of(rows, "frozen rank"):
        assert max(row["errors"]) <= 1e-5


def test_what_is_kept_from_garbage_collection_is_given_back_at_the_end(rows: Any) -> None:
    for row in of(rows, "frozen rank"):
        assert row["kept"] > 0
        assert row["left"] == 0


def test_process_groups_of_two_engines_are_gone_after_their_end(rows: Any) -> None:
    for row in of(rows, "frozen rank"):
        assert row["groups"] >= 4
        assert row["alive"] == 0
