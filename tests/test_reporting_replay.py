"""``ds-dip replay``: what it tells of a recording, and how its steps are planned again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.costs.corrections import Corrections, Fit
from ds_dip.data import DatasetReference
from ds_dip.partition import make_partition
from ds_dip.planner import Planner, StepPlan
from ds_dip.planner.record import seal
from ds_dip.planner.recording import Recording
from ds_dip.reporting.replay import FORMAT, Replay, plan_again
from tests.planner_cases import MODEL, settings
from tests.recording_cases import PLANNER, RUN, record, run_of, scaled

FACTORS = {0: 3.0, 1: 1.0, 2: 0.5, 5: 1.2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return record(tmp_path, *(scaled(PLANNER.plan(step), factor) for step, factor in FACTORS.items()))


def replay(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["replay", str(folder), *arguments])


def corrected() -> Planner:
    planner = Planner(settings())
    planner.corrections = Corrections((Fit("vision", "F", 9.0, 0.002), Fit("", "iteration", 1.5, 0.01)))
    return planner


@pytest.mark.parametrize(
    "plan",
    [corrected().plan(4), corrected().fallback(4, "late"), PLANNER.plan(4)],
    ids=["corrected", "fallback", "planned"],
)
def test_a_plan_that_no_clock_has_shaped_comes_out_again(plan: StepPlan) -> None:
    again = plan_again(plan, Planner(settings()))
    assert (again.same, again.same_order, again.makespan_s, again.problem) == (True, True, plan.makespan, "")
    assert again.evaluations == (0 if plan.kind == "fallback" else settings().evaluations)


def test_a_plan_that_was_searched_less_is_told_beside_what_it_would_be() -> None:
    hurried = Planner(settings(evaluations=0))
    plan = next(plan for step in range(20) if (plan := hurried.plan(step)).makespan > PLANNER.plan(step).makespan)
    again = plan_again(plan, Planner(settings()))
    assert (again.same, again.same_order) == (False, False)
    assert again.makespan_s == PLANNER.plan(plan.step).makespan < plan.makespan


def test_a_dataset_that_changed_is_told() -> None:
    plan = PLANNER.plan(4)
    first, *others = plan.batch.microbatches
    shrunk = seal(replace(plan, batch=replace(plan.batch, microbatches=(replace(first, samples=()), *others))))
    assert "its batch is another one now" in plan_again(shrunk, Planner(settings())).problem


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (DatasetReference("tests.nowhere:Samples"), "dataset factory 'tests.nowhere:Samples' cannot be imported"),
        (DatasetReference("tests.planner_cases:Samples", {"length": 41}), "has 41 samples now, recorded were 40"),
        (DatasetReference("tests.planner_cases:Samples", {"broken": 7}), "the dataset raised OSError"),
    ],
)
def test_a_dataset_that_is_not_there_leaves_the_rest(tmp_path: Path, dataset: DatasetReference, sentence: str) -> None:
    steps = [scaled(PLANNER.plan(step)) for step in range(5)]
    found = Replay(Recording(record(tmp_path, *steps, run=run_of(replace(RUN.settings, dataset=dataset)))))
    problems = {found.again(parts).again.problem for parts in found.steps}
    assert any(sentence in problem for problem in problems), problems
    shown = replay(tmp_path, "--worst", "5")
    assert shown.exit_code == 0
    assert sentence in shown.output


def test_the_command_shows_the_recording_and_its_worst_steps(folder: Path) -> None:
    shown = replay(folder, "--worst", "2")
    assert shown.exit_code == 0, shown.output
    assert "4 steps, 0 to 5, 0 of them fallbacks; small on 2 ranks" in shown.output
    assert "step 2 parts from its plan at: F vision" in shown.output
    assert "ms early" in shown.output
    assert "step 0 planned again: the same plan" in shown.output
    assert "step 5 " not in shown.output


def test_the_command_shows_one_step_whole(folder: Path) -> None:
    shown = replay(folder, "--step", "0")
    assert shown.exit_code == 0, shown.output
    for words in ("step 0, planned (dip)", "reduction and step", "for messages", "B language, rank 1", "ms late"):
        assert words in shown.output


def test_as_json_everything_can_be_added_up(folder: Path) -> None:
    shown = replay(folder, "--json", "--worst", "1")
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.output)
    assert (document["format"], document["version"], document["ranks"]) == (FORMAT, 1, 2)
    assert document["versions"] == RUN.versions
    assert [row["step"] for row in document["steps"]] == list(FACTORS)
    for row in (*document["steps"], *document["shown"]):
        total = row["stages_s"] + row["waiting_s"] + row["end_s"] + row["unexplained_s"]
        assert total == pytest.approx(row["difference_s"])
        assert row["difference_s"] == pytest.approx(row["measured_iteration_s"] - row["predicted_iteration_s"])
    (one,) = document["shown"]
    assert one["step"] == 2
    assert one["again"]["same"]
    assert sum(group["effect_s"] for group in one["groups"]) == pytest.approx(one["stages_s"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--step", "9"), "holds no step 9, the recording ends with step 5"),
        (
            ("--replica", "1"),
            'replica-1: holds no step-*.jsonl.gz; name the folder of a run that was trained with "dip.',
        ),
        (("--step", "-1"), "Invalid value for '--step'"),
    ],
)
def test_what_is_not_there_is_one_sentence(folder: Path, arguments: tuple[str, ...], sentence: str) -> None:
    shown = replay(folder, *arguments)
    assert shown.exit_code == 2
    assert sentence in shown.output


def test_a_damaged_step_is_one_sentence(folder: Path) -> None:
    path = Recording(folder).steps[1]
    path.write_bytes(path.read_bytes()[:-9])
    shown = replay(folder)
    assert shown.exit_code == 2
    assert shown.output.startswith(f"ds-dip: {path}: is no whole gzip file")


def test_steps_of_another_partition_are_one_sentence(tmp_path: Path) -> None:
    other = settings(partition=make_partition(MODEL, 2, {}, {"vision": 3}))
    shown = replay(record(tmp_path, scaled(PLANNER.plan(0)), run=run_of(other)))
    assert shown.exit_code == 2
    assert "the plan of step 0 is none of the recorded partition" in shown.output


def test_a_recorded_step_can_be_traced(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    result = CliRunner().invoke(cli, ["trace", str(folder), "--step", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "step 1, planned and measured" in result.output
    events = json.loads(out.read_text())["traceEvents"]
    assert max(event["args"]["bytes"] for event in events if event["ph"] == "C") == pytest.approx(
        max(PLANNER.plan(1).peak_memory)
    )
