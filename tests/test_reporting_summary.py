"""The summary of a run."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ds_dip.planner import SourceStatistics
from ds_dip.reporting.summary import StepRecord, summarise, table, write_summary

NONE = SourceStatistics()


def record(step: int, **changes: object) -> StepRecord:
    given: dict[str, object] = {
        "step": step,
        "loss": 2.0 / (1 + step),
        "samples": 8,
        "seconds": 0.5,
        "predicted_s": 0.4,
        "measured_s": 0.5,
        "bubble": 0.2,
    }
    return StepRecord(**(given | changes))  # type: ignore[arg-type]


def test_plans_and_fallbacks_are_counted_by_cause() -> None:
    summary = summarise(
        [record(0)],
        SourceStatistics(planned=5, fallbacks={"late": 2, "dead": 1}, reasons=("step 3: late",), restarts=1),
    )
    assert (summary.plans, summary.planner_restarts) == (5, 1)
    assert summary.fallbacks == {"late": 2, "dead": 1}
    assert summary.newest_reasons == ("step 3: late",)


def test_times_are_medians_so_that_one_slow_step_does_not_show() -> None:
    summary = summarise([record(0, seconds=30.0, measured_s=30.0), *(record(n) for n in range(1, 10))], NONE)
    assert summary.seconds_per_iteration == 0.5
    assert summary.measured_iteration_s == 0.5
    assert summary.prediction_error == pytest.approx(0.2)
    assert summary.samples_per_s == pytest.approx(80 / 34.5)


def test_losses_at_both_ends_are_means_over_several_steps() -> None:
    summary = summarise([record(n, loss=float(n)) for n in range(100)], NONE)
    assert (summary.first_loss, summary.last_loss) == (4.5, 94.5)
    assert summary.losses == tuple(map(float, range(100)))


@pytest.mark.parametrize(("steps", "ends"), [(1, (0.0, 0.0)), (6, (1.0, 4.0)), (7, (1.5, 4.5))])
def test_the_ends_of_a_short_run_are_not_the_same_steps(steps: int, ends: tuple[float, float]) -> None:
    summary = summarise([record(n, loss=float(n)) for n in range(steps)], NONE)
    assert (summary.first_loss, summary.last_loss) == ends


def test_the_file_holds_every_figure(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, summarise([record(0), record(1)], NONE, accuracy=0.97, seconds=3.0))
    document = json.loads(path.read_text())
    assert (document["format"], document["version"]) == ("ds-dip/summary", 1)
    assert (document["accuracy"], document["steps"], document["seconds"]) == (0.97, 2, 3.0)
    assert document["losses"] == [2.0, 1.0]


def test_a_loss_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_summary(tmp_path / "summary.json", summarise([record(0, loss=float("nan"))], NONE))
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="train at least one step"):
        summarise([], NONE)


def test_the_table_shows_accuracy_losses_and_fallbacks() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    statistics = SourceStatistics(fallbacks={"late": 3})
    console.print(table(summarise([record(0)], statistics, accuracy=0.9712), "quickstart"))
    text = console.export_text()
    assert "quickstart" in text
    assert "97.12%" in text
    assert "late" in text
