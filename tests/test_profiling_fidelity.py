"""A check's figures: errors against medians, the machine's noise beside them, and reasons for what is missed."""

from __future__ import annotations

import pytest

from ds_dip.profiling.fidelity import ITERATION_TARGET, STAGE_TARGET, Compared, report


def rows(stage: float, iteration: float, spread: float = 0.0) -> list[Compared]:
    values = (1.0 - spread, 1.0, 1.0 + spread)
    return [
        *(Compared("stage", f"F language.{i} of batch 0, 0.0", stage, values) for i in range(5)),
        *(Compared("iteration", f"batch {i}", iteration, values) for i in range(5)),
        Compared("layer", "F head of 3 tokens in 1 instances", 1.02, (1.0,)),
    ]


def test_errors_are_relative_to_the_median_measurement() -> None:
    document = report(rows(1.04, 0.98, 0.3))
    assert document["stage_median_error"] == pytest.approx(0.04)
    assert document["iteration_mean_error"] == pytest.approx(0.02)
    assert document["layer_median_error"] == pytest.approx(0.02)
    assert document["noise"]["stage"] == pytest.approx(0.2)
    assert document["noise"]["layer"] is None
    assert document["reasons"] == []


def test_single_iterations_count_the_noise_too() -> None:
    document = report(rows(1.0, 1.0, 0.3))
    assert document["iteration_mean_error"] == 0.0
    assert document["single_iteration_mean_error"] > 0.1


def test_a_missed_target_has_its_reason_with_the_noise() -> None:
    document = report(rows(1.0 + 2 * STAGE_TARGET, 1.0 + 2 * ITERATION_TARGET, 0.3))
    said = " ".join(document["reasons"])
    assert "stage_median_error is 10.0 %, the target 5 %" in said
    assert "iteration_mean_error is 6.0 %, the target 3 %" in said
    assert "repeated is 20.0 % off its own median" in said
    assert "one-sided: the machine is faster now" in said
    assert "without the one-sided part the mean error is 0.0 %" in said


def test_a_machine_that_drifts_is_seen_round_by_round() -> None:
    document = report([Compared("iteration", f"batch {i}", 1.0, (1.0, 1.25, 2.0)) for i in range(3)])
    assert document["bias_by_round"]["iteration"] == pytest.approx([0.0, -0.2, -0.5])
    assert document["two_sided"]["iteration"] == 0.0
    assert document["bias_by_round"]["stage"] == []


def test_two_sided_errors_are_told_by_kind() -> None:
    both = [
        Compared("stage", f"{kind} of batch {i}, 0.0", 1.0 + error, (1.0,))
        for i in range(3)
        for kind, error in (("F a.0", 0.2), ("B a.0", -0.2), ("F b.0", 0.0))
    ]
    assert any("B a.0 20.0 %, F a.0 20.0 %, F b.0 0.0 %" in reason for reason in report(both)["reasons"])


def test_the_rows_tell_everything() -> None:
    row = report(rows(1.04, 0.98, 0.3))["rows"][0]
    assert (row["what"], row["predicted"], row["measured_median"]) == ("stage", 1.04, 1.0)
    assert row["error"] == pytest.approx(0.04)


def test_what_was_not_run_is_none() -> None:
    document = report([Compared("layer", "x", 1.0, (1.0,))])
    assert document["stage_median_error"] is None
    assert document["iteration_mean_error"] is None
