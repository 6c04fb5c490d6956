"""eval_batch gives one process's loss whatever the plan; the monitors and counts follow the batches (real ranks)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.evaluation import PLANS
from tests.distributed.ranks import run_ranks

BATCHES = ("partial", "one sample", "no images", "one with images", "partly supervised")
NOTHING = "none of the global batch's 3 samples has a supervised token, so there is no loss to divide"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    return run_ranks("tests.distributed.evaluation", 2, str(tmp_path_factory.mktemp("evaluation")))


def of(rows: list[list[dict[str, Any]]], plan: str, batch: str = "") -> list[dict[str, Any]]:
    return [row for rank in rows for row in rank if row["plan"] == plan and row.get("batch", "") == batch]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("batch", BATCHES)
def test_the_loss_and_logits_are_those_of_one_process(rows: Any, plan: str, batch: str) -> None:
    found = of(rows, plan, batch)
    assert len(found) == 2
    for row in found:
        assert row["loss"] == pytest.approx(row["expected"], rel=1e-5)
        assert row["again"] == row["loss"]
        assert row["apart"] <= 1e-4
    # Every sample's rows are given once in the job, where its loss is computed.
    assert sorted(sample for row in found for sample in row["given"]) == found[0]["samples"]


@pytest.mark.parametrize("plan", PLANS)
def test_no_supervised_token_and_no_sample_are_refused_on_every_rank_and_the_run_goes_on(rows: Any, plan: str) -> None:
    found = of(rows, plan, "refused")
    assert len(found) == 2
    for row in found:
        nothing, empty = row["refused"]
        assert NOTHING in nothing
        assert "sample" in empty
        assert row["steps"] == 1
    assert found[0]["loss"] == found[1]["loss"]
    assert found[0]["refused"] == found[1]["refused"]


def test_a_batch_of_another_size_is_planned_counted_and_shown(rows: Any) -> None:
    for row in of(rows, "watched"):
        assert row["sizes"] == [8, 8, 4, 4, 10]
        assert row["samples"] == 34
    figures = of(rows, "watched")[0]["figures"]
    steps = [8, 16, 20, 24, 34]
    for name in ("tflops", "bubble_pct", "measured_s", "predicted_s", "peak_memory_gb", "stall_ms", "fallbacks"):
        assert [step for step, _ in figures[f"DIP/{name}"]] == steps, name
    assert all(value > 0.0 for _, value in figures["DIP/tflops"])
    assert [step for step, _ in figures["Train/Samples/lr"]] == steps
    assert len(figures["Train/Samples/train_loss"]) == len(steps)
