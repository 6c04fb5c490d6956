"""What commands print as JSON is what they print as text, and nothing else is on standard output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from tests.test_reporting_run import Engine, train

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = str(ROOT / "docs" / "scheduling-problem.json")


def run(*arguments: str, status: int = 0) -> Any:
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("plan") / "plan.json"
    run("solve", PROBLEM, "--evaluations", "50", "--out", str(path))
    return path


def test_solve_tells_the_plans_figures(plan: Path) -> None:
    told = run("solve", PROBLEM, "--evaluations", "50", "--out", str(plan))
    written = json.loads(plan.read_text())
    assert {key: told[key] for key in ("status", "makespan", "lower_bound", "gap", "evaluations")} == {
        key: written[key] for key in ("status", "makespan", "lower_bound", "gap", "evaluations")
    }
    assert told["baselines"]["static"] >= told["makespan"]


def test_solve_tells_why_nothing_fits(tmp_path: Path) -> None:
    problem = json.loads(Path(PROBLEM).read_text()) | {"memory_capacity": [1.0, None]}
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    told = run("solve", str(tmp_path / "problem.json"), "--out", str(tmp_path / "plan.json"), status=1)
    assert told["status"] == "infeasible"
    assert told["reason"]
    assert told["sufficient_capacity"][0] > 1.0


def test_check_tells_every_violation(plan: Path, tmp_path: Path) -> None:
    told = run("check", PROBLEM, str(plan))
    assert (told["holds"], told["violations"], told["tasks"]) == (True, [], 18)
    document = json.loads(plan.read_text())
    (tmp_path / "bad.json").write_text(json.dumps(document | {"makespan": 2 * document["makespan"]}))
    told = run("check", PROBLEM, str(tmp_path / "bad.json"), status=1)
    assert told["holds"] is False
    assert told["violations"]


def test_trace_tells_what_it_wrote(plan: Path, tmp_path: Path) -> None:
    told = run("trace", str(plan), "--problem", PROBLEM, "--out", str(tmp_path / "a.json"))
    assert told == {"stages": 18, "ranks": 2, "trace": str(tmp_path / "a.json")}
    train(Engine(), tmp_path / "run", steps=2)
    told = run("trace", str(tmp_path / "run"), "--out", str(tmp_path / "b.json"))
    assert (told["step"], told["measured"], told["ranks"]) == (1, True, 2)
    assert (tmp_path / "b.json").exists()


def test_data_inspect_tells_what_is_there(tmp_path: Path) -> None:
    demo = ROOT / "tests" / "data" / "mllm_demo" / "mllm_demo.json"
    model = ("--model", "quickstart", "--index", str(tmp_path / "index"))
    result = CliRunner().invoke(cli, ["data", "inspect", str(demo), *model, "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == (1 if told["problems"] else 0)
    assert told["samples"] + told["problems"] > 0
    assert len(told["first_problems"]) == min(20, told["problems"])
