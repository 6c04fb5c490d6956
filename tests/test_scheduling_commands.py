from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from ds_dip.scheduling.documents import write_problem
from ds_dip.scheduling.instances import unequal, uniform
from ds_dip.scheduling.search import Budget


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    write_problem(tmp_path / "problem.json", unequal(3, 1, 4, 5, 3))
    return tmp_path / "problem.json"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_solve_writes_a_plan_that_check_accepts(problem: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    code, output = run("solve", problem, "--evaluations", 5000, "--out", plan)
    assert code == 0
    assert "over the bound" in output
    assert "1f1b" in output
    code, output = run("check", problem, plan)
    assert code == 0
    assert output.startswith("holds: 24 tasks")


def test_check_exits_with_1_and_shows_violations(problem: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run("solve", problem, "--evaluations", 100, "--out", plan)
    document = json.loads(plan.read_text())
    document["tasks"][0]["end"] += 1.0
    document["problem_sha256"] = "0" * 64
    plan.write_text(json.dumps(document))
    code, output = run("check", problem, plan)
    assert code == 1
    assert "the plan is for problem 000000000000" in output
    assert "its duration is" in output


def test_a_warm_start_and_the_same_order_are_taken(problem: Path, tmp_path: Path) -> None:
    plan, other = tmp_path / "plan.json", tmp_path / "other.json"
    run("solve", problem, "--evaluations", 3000, "--out", plan)
    assert run("solve", problem, "--evaluations", 20, "--warm-start", plan, "--out", other)[0] == 0
    assert json.loads(other.read_text())["makespan"] <= json.loads(plan.read_text())["makespan"]
    assert run("solve", problem, "--evaluations", 200, "--same-order", "--out", other)[0] == 0
    assert run("check", problem, other)[0] == 0


@pytest.mark.parametrize("option", ["--seed=1", "--same-order", "--workers=2"])
def test_an_interrupted_search_writes_its_best_plan(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_problem(tmp_path / "p.json", unequal(4, 1, 9, 7, 5))
    over, asked = Budget.over, []

    def interrupted(self: Budget) -> bool:
        asked.append(self)
        if len(asked) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return len(asked) > 100 or over(self)

    monkeypatch.setattr(Budget, "over", interrupted)
    code, output = run("solve", tmp_path / "p.json", "--budget=1000", option, "--out", tmp_path / "plan.json")
    assert code == 130, output
    assert "over the bound" in output
    assert len(asked) == 2
    assert run("check", tmp_path / "p.json", tmp_path / "plan.json")[0] == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_infeasible_problem_exits_with_1_and_a_plan_that_says_why(tmp_path: Path) -> None:
    path, plan = tmp_path / "problem.json", tmp_path / "plan.json"
    write_problem(path, uniform(2, 2, 3, cap=1))
    code, output = run("solve", path, "--out", plan)
    assert code == 1
    assert "sufficient capacity: [2.0, 2.0]" in output
    assert json.loads(plan.read_text())["status"] == "infeasible"
    code, output = run("check", path, plan)
    assert code == 0
    assert "infeasible, as the plan says" in output


def test_bad_files_get_one_sentence(tmp_path: Path) -> None:
    code, output = run("solve", tmp_path / "none.json", "--out", tmp_path / "plan.json")
    assert code == 2
    assert "cannot be read" in output
    (tmp_path / "list.json").write_text("[]")
    code, output = run("check", tmp_path / "list.json", tmp_path / "none.json")
    assert code == 2
    assert "expected a JSON object; give a ds-dip/problem file" in output
    assert output.startswith("ds-dip: ")
    assert output.count("\n") == 1


@pytest.mark.parametrize("target", ["", "none/plan.json"])
def test_a_target_that_cannot_be_written_is_refused_before_the_search(
    problem: Path, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds_dip.commands.solve.solve", lambda *_, **__: pytest.fail("searches"))
    code, output = run("solve", problem, "--out", tmp_path / target)
    assert code == 2
    assert output.startswith(f"ds-dip: {tmp_path / target}: ")
    assert run("solve", problem, "--out", "/dev/full")[0] == 2
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize(
    "option", ["--budget=nan", "--budget=inf", "--budget=0", "--workers=257", "--seed=1" + "0" * 30, "--evaluations=0"]
)
def test_options_that_are_no_numbers_to_work_with_are_refused(problem: Path, tmp_path: Path, option: str) -> None:
    code, output = run("solve", problem, option, "--out", tmp_path / "plan.json")
    assert code == 2
    assert "Invalid value" in output
    assert not (tmp_path / "plan.json").exists()


def test_a_plan_never_replaces_its_problem(problem: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(problem)
    before = problem.read_bytes()
    for out in (problem, tmp_path / "link.json"):
        code, output = run("solve", problem, "--out", out)
        assert (code, output.startswith(f"ds-dip: {out}: is the problem itself")) == (2, True)
    assert problem.read_bytes() == before


def test_a_warm_start_of_another_problem_is_refused(problem: Path, tmp_path: Path) -> None:
    write_problem(tmp_path / "other.json", uniform(2, 1, 2))
    run("solve", tmp_path / "other.json", "--evaluations", 10, "--out", tmp_path / "plan.json")
    code, output = run("solve", problem, "--warm-start", tmp_path / "plan.json", "--out", tmp_path / "new.json")
    assert code == 2
    assert output.startswith("ds-dip: ")
    assert output.count("\n") == 1
