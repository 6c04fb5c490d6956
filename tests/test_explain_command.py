"""``ds-dip explain``, of plans, runs and models, and the commands that exchange orders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.explaining.words import MARKS
from ds_dip.reporting.timeline import step_timeline, write_timeline
from ds_dip.scheduling.documents import problem_document, read_plan, write_problem
from ds_dip.scheduling.instances import multimodal, uniform
from tests.partition_cases import CONFIGS
from tests.recording_cases import PLANNER, record, scaled

TABLE = CONFIGS.parent / "profiling" / "tables" / "xeon-2-cores.float32.json"
MODEL = [
    "--model", str(CONFIGS / "quickstart.json"), "--ranks", "2", "--table", str(TABLE),
    "--dataset", "ds_dip.data.digits:Digits", "--dataset-options", '{"samples": 400}',
    "--batch-size", "16", "--microbatches", "4", "--batches", "2",
]  # fmt: skip
FEW = ["--evaluations", "40", "--seeds", "2"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(own) for own in arguments])


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A problem whose memory is tight, and a plan of it."""
    folder = tmp_path_factory.mktemp("plan")
    write_problem(folder / "problem.json", multimodal(4, 6, 3, cap=2.0))
    assert run("solve", folder / "problem.json", "--evaluations", 40, "--out", folder / "plan.json").exit_code == 0
    return folder / "problem.json", folder / "plan.json"


def test_a_plan_is_drawn_and_told(plan: tuple[Path, Path]) -> None:
    result = run("explain", plan[1], "--problem", plan[0], "--path")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == f"{plan[1]}: 256 tasks on 4 ranks"
    assert [line[:7] for line in lines[1:5]] == [f"rank {rank} " for rank in range(4)]
    assert all(set(line[7:]) <= {*"FBWfbw", *MARKS.values()} for line in lines[1:5])
    assert "the makespan is " in result.output
    assert "memory: " in result.output
    assert "critical path\n" in result.output


def test_a_plan_as_json_has_every_bubble(plan: tuple[Path, Path]) -> None:
    document = json.loads(run("explain", plan[1], "--problem", plan[0], "--json").stdout)
    assert document["format"] == "ds-dip/explanation"
    made = read_plan(plan[1])
    assert document["makespan"] == made.makespan
    assert document["lower_bound"] == pytest.approx(made.lower_bound)
    bubbles = math.fsum(own["end"] - own["start"] for own in document["bubbles"])
    assert bubbles + math.fsum(document["work"]) == pytest.approx(4 * made.makespan)


def test_what_if_searches_changed_problems(plan: tuple[Path, Path]) -> None:
    result = run("explain", plan[1], "--problem", plan[0], "--what-if", "memory", "--what-if", "links", "--json", *FEW)
    assert result.exit_code == 0, result.output
    outcomes = json.loads(result.stdout)["what_if"]
    names = ["as it is", "memory x1.25", "no memory limit", "links x2", "no transfers"]
    assert [own["name"] for own in outcomes] == names
    assert all(len(own["makespans"]) == 2 for own in outcomes)
    by_name = {own["name"]: own for own in outcomes}
    assert by_name["no memory limit"]["known"]
    assert by_name["no memory limit"]["saves"] > 0.1
    table = run("explain", plan[1], "--problem", plan[0], "--what-if", "all", *FEW).output
    assert "What changes would bring" in table
    assert "one more microbatch" in table


def test_a_run_is_explained_as_measured_and_as_planned(tmp_path: Path) -> None:
    record(tmp_path, scaled(PLANNER.plan(2)), scaled(PLANNER.plan(3), 1.5))
    result = run("explain", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0] == f"{tmp_path}, step 3, planned by {PLANNER.plan(3).schedule}, as measured"
    assert "the step took " in result.output
    assert "planner: " in result.output
    result = run("explain", tmp_path, "--step", 2, "--planned")
    assert f"{tmp_path}, step 2" in result.output
    assert "the makespan is " in result.output


def test_a_measured_step_is_searched_as_long_as_its_stages_were(tmp_path: Path) -> None:
    record(tmp_path, scaled(PLANNER.plan(3), 3.0))
    arguments = ["explain", tmp_path, "--what-if", "links", "--json", *FEW]
    measured, planned = (json.loads(run(*arguments, *more).stdout)["what_if"] for more in ([], ["--planned"]))
    assert measured[0]["makespans"][0] > 2.5 * planned[0]["makespans"][0]
    write_timeline(tmp_path / "other", step_timeline(PLANNER.plan(3), scaled(PLANNER.plan(3))))
    result = run("explain", tmp_path / "other", "--what-if", "links", *FEW)
    assert result.exit_code == 2
    assert "step 3 is known by its timeline alone" in result.output


def test_a_run_without_a_recording_says_what_is_not_known(tmp_path: Path) -> None:
    write_timeline(tmp_path, step_timeline(PLANNER.plan(1), scaled(PLANNER.plan(1))))
    result = run("explain", tmp_path)
    assert result.exit_code == 0, result.output
    assert 'record the run ("dip.record.every")' in result.output


def test_a_models_setup_is_planned_and_changed() -> None:
    result = run("explain", *MODEL, "--what-if", "all", "--json", *FEW)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    names = [own["name"] for own in document["what_if"]]
    assert names[0] == "as it is"
    assert {"vision K=2", "language K=2", "vision B=4", "3 microbatches", "5 microbatches", "links x2"} <= set(names)
    assert {"balanced ranks", "even microbatches"} <= set(names)
    assert "memory x1.25" not in names
    base = document["what_if"][0]
    for own in document["what_if"]:
        assert own["lower_bound"] <= min(own["makespans"]) * (1 + 1e-9)
    balanced = next(own for own in document["what_if"] if own["name"] == "balanced ranks")
    assert balanced["makespans"] != base["makespans"]


def test_memory_of_a_model_is_changed_where_it_is_limited() -> None:
    result = run("explain", *MODEL, "--memory-gb", "0.02", "--what-if", "memory", *FEW)
    assert result.exit_code == 0, result.output
    assert "memory x1.25" in result.output
    assert "no memory limit" in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give a plan or a run's folder, or else a --model with its data"),
        (["PLAN", "--model", "x"], "give a plan or a run's folder, or else a --model with its data"),
        (["PLAN"], "is a file: give the --problem of the plan, or a run's folder"),
        (["PLAN", "--problem", "PROBLEM", "--step", "3"], "--step and --planned are of a run"),
        (["PLAN", "--problem", "PROBLEM", "--what-if", "laps"], "--what-if laps: here it is memory, links, balance"),
        (["PLAN", "--problem", "PROBLEM", "--memory-gb", "8"], "--memory-gb goes with --model"),
        (["--model", "quickstart", "--step", "3"], "--problem, --step and --planned go with a plan or a run"),
        (["PLAN", "--problem", "OTHER"], "is a plan of another problem than"),
        (["--model", str(CONFIGS / "quickstart.json")], "give the model's --partition, or how many --ranks there are"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str], sentence: str, plan: tuple[Path, Path], tmp_path: Path
) -> None:
    write_problem(tmp_path / "other.json", uniform(2, 1, 2))
    places: dict[str, Any] = {"PLAN": plan[1], "PROBLEM": plan[0], "OTHER": tmp_path / "other.json"}
    result = run("explain", *(places.get(own, own) for own in arguments))
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_a_plan_that_does_not_hold_is_refused(plan: tuple[Path, Path], tmp_path: Path) -> None:
    document = json.loads(plan[1].read_text())
    document["tasks"][0]["start"] += 1.0
    (tmp_path / "plan.json").write_text(json.dumps(document))
    for command in ("explain", "trace"):
        result = run(command, tmp_path / "plan.json", "--problem", plan[0])
        assert result.exit_code == 2
        assert "does not hold (task" in result.output
    document["status"] = "infeasible"
    document |= {"tasks": [], "reason": "too little memory"}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    for command in (["explain"], ["trace"], ["trace", "--format", "csv"]):
        result = run(*command, tmp_path / "plan.json", "--problem", plan[0])
        assert result.exit_code == 2
        assert "says that no schedule fits (too little memory)" in result.output
    result = run("solve", plan[0], "--warm-start", tmp_path / "plan.json", "--out", tmp_path / "new.json")
    assert result.exit_code == 2
    assert "says that no schedule fits, so there is none to begin with" in result.output
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize("layout", [None, 2])
@pytest.mark.parametrize("command", [["report"], ["trace"], ["trace", "--format", "csv"]])
def test_nothing_that_is_read_is_replaced(command: list[str], layout: int | None, tmp_path: Path) -> None:
    """However a file is laid out: people write problems by hand."""
    problem, made, other = (tmp_path / f"{name}.json" for name in ("problem", "plan", "other"))
    problem.write_text("\n" * (layout or 0) + json.dumps(problem_document(uniform(2, 1, 2)), indent=layout))
    assert run("solve", problem, "--evaluations", 5, "--out", made).exit_code == 0
    made.write_text(json.dumps(json.loads(made.read_text()), indent=layout))
    other.write_bytes(problem.read_bytes())
    for out in (problem, made, other):
        before = out.read_bytes()
        result = run(*command, made, "--problem", problem, "--out", out)
        assert result.exit_code == 2, result.output
        assert "would be replaced; name another file" in result.output or "would replace" in result.output
        assert out.read_bytes() == before


def test_an_order_goes_out_as_csv_and_comes_back_as_a_plan(tmp_path: Path) -> None:
    problem, made = tmp_path / "problem.json", tmp_path / "plan.json"
    write_problem(problem, uniform(4, 2, 8))
    run("solve", problem, "--evaluations", 40, "--out", made)
    result = run("trace", made, "--problem", problem, "--format", "csv", "--out", tmp_path / "order.csv")
    assert result.output == f"128 actions on 4 ranks: {tmp_path}/order.csv\n"
    assert (tmp_path / "order.csv").read_text().startswith("0F0,")
    result = run("adopt", tmp_path / "order.csv", "--problem", problem, "--out", tmp_path / "back.json")
    assert result.exit_code == 0, result.output
    assert read_plan(tmp_path / "back.json").order == read_plan(made).order
    assert read_plan(tmp_path / "back.json").makespan == read_plan(made).makespan
    assert run("check", problem, tmp_path / "back.json").exit_code == 0
    before = problem.read_bytes()
    result = run("adopt", tmp_path / "order.csv", "--problem", problem, "--out", problem)
    assert "is read as well and would be replaced" in result.output
    assert problem.read_bytes() == before


def test_orders_that_contradict_the_edges_are_refused(tmp_path: Path) -> None:
    write_problem(tmp_path / "problem.json", uniform(1, 1, 2))
    (tmp_path / "order.csv").write_text("0B0,0F0,0F1,0B1\n")
    result = run("adopt", tmp_path / "order.csv", "--problem", tmp_path / "problem.json", "--out", tmp_path / "p.json")
    assert result.exit_code == 2
    assert "give an order that follows the problem's edges" in result.output
    assert not (tmp_path / "p.json").exists()


def test_a_plan_as_a_trace_has_tasks_arrows_memory_and_bubbles(plan: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    result = run("trace", plan[1], "--problem", plan[0], "--out", out)
    assert result.output == f"plan, 256 stages on 4 ranks: {out}\n"
    events = json.loads(out.read_text())["traceEvents"]
    assert sum(own["ph"] == "X" and " chunk " in own["name"] for own in events) == 256
    assert any(own["ph"] == "s" for own in events)
    assert any(own["ph"] == "C" for own in events)
    threads = [own["args"]["name"] for own in events if own["ph"] == "M" and own["name"] == "thread_name"]
    assert threads.count("bubbles") == 4
    bubbles = [own for own in events if own["ph"] == "X" and own.get("cat") == "bubble"]
    made = read_plan(plan[1])
    whole = math.fsum(end - start for _, start, end in made.tasks) + 1e-6 * math.fsum(own["dur"] for own in bubbles)
    assert whole == pytest.approx(4 * made.makespan)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["PLAN", "--format", "csv"], "--format csv is of a plan: give its --problem"),
        (["PLAN"], "is a file: give the --problem of the plan, or a run's folder"),
        (["PLAN", "--problem", "PROBLEM", "--step", "1"], "--step is of a run, and --problem of a plan"),
        (["PLAN", "--problem", "PROBLEM", "--out", "PLAN"], "is read as well and would be replaced"),
        (
            ["PLAN", "--problem", "PROBLEM", "--format", "csv"],
            "is in sub-microbatches, and torch's schedule CSV has none",
        ),
    ],
)
def test_traces_of_what_cannot_be_traced_are_refused(
    arguments: list[str], sentence: str, plan: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"PLAN": plan[1], "PROBLEM": plan[0]}
    result = run("trace", *(places.get(own, own) for own in arguments))
    assert result.exit_code == 2
    assert sentence in result.output
    assert not list(tmp_path.iterdir())
