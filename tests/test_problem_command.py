"""``ds-dip problem``: what is written is what the planner would solve, and every command about plans takes it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.scheduling import lower_bound
from ds_dip.scheduling.documents import read_problem
from tests.test_explain_command import MODEL


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(own) for own in arguments])


def test_a_batch_of_a_model_is_solved_checked_and_explained_from_its_file(tmp_path: Path) -> None:
    problem, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    result = run("problem", *MODEL, "--out", problem, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    task_graph, _ = read_problem(problem)
    assert (told["tasks"], told["ranks"]) == (len(task_graph.tasks), 2)
    assert (told["lower_bound"], told["bound"]) == lower_bound(task_graph)
    assert {task.module for task in task_graph.tasks} == {"vision", "language"}
    assert run("solve", problem, "--evaluations", 60, "--out", plan).exit_code == 0
    assert run("check", problem, plan).exit_code == 0
    # The same batch and costs as of the model itself.
    explained = json.loads(run("explain", *MODEL, "--evaluations", 60, "--json").stdout)
    assert told["lower_bound"] == explained["lower_bound"]
    assert json.loads(plan.read_text())["makespan"] >= told["lower_bound"]


def test_batches_differ_and_memory_limits_are_in_the_problem(tmp_path: Path) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    assert run("problem", *MODEL, "--out", first).exit_code == 0
    result = run("problem", *MODEL, "--batch", 2, "--memory-gb", 1, "--out", second)
    assert result.exit_code == 0, result.output
    assert "batch 2 of quickstart" in result.output
    whole, limited = read_problem(first)[0], read_problem(second)[0]
    assert [task.duration for task in whole.tasks] != [task.duration for task in limited.tasks]
    assert all(capacity is None for capacity in whole.memory_capacity)
    assert all(capacity is not None and capacity < 1e9 for capacity in limited.memory_capacity)
    assert limited.pairs


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    result = run("problem", *MODEL, "--batch", 3, "--out", tmp_path / "p.json")
    assert result.exit_code == 2
    assert "--batch 3: there are --batches 2" in result.output
    result = run("problem", *MODEL, "--memory-gb", 0.0001, "--out", tmp_path / "p.json")
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "p.json").exists()
