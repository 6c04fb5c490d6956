from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from ds_dip.files import FileError
from ds_dip.scheduling import Problem, ProblemError, solve, verify
from ds_dip.scheduling.documents import problem_document, read_plan, read_problem, write_plan, write_problem
from ds_dip.scheduling.instances import uniform
from tests.scheduling_cases import problems

DATA = Path(__file__).parent / "data" / "scheduling"


@settings(max_examples=20, deadline=None)
@given(problem=problems(choices=True))
def test_a_problem_survives_its_file(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("problem") / "problem.json"
    write_problem(path, problem)
    read, digest = read_problem(path)
    assert read == problem
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    for problem in (uniform(2, 1, 3), uniform(2, 2, 3, cap=1)):
        plan = solve(problem, evaluations=50).plan("ab" * 32)
        write_plan(tmp_path / "plan.json", plan)
        assert read_plan(tmp_path / "plan.json") == plan


def test_chunk_sub_and_memory_may_be_left_out() -> None:
    problem, _ = read_problem(DATA / "short.json")
    assert [(task.kind, task.chunk, task.rank) for task in problem.tasks] == [
        ("F", 0, 0), ("F", 1, 1), ("B", 1, 1), ("B", 0, 0),
    ]  # fmt: skip
    assert all((task.sub, task.acquire, task.tail) == (0, 0.0, 0.0) for task in problem.tasks)


def broken(change: str, value: Any) -> dict[str, Any]:
    document = json.loads(json.dumps(problem_document(uniform(2, 1, 2))))
    *path, last = change.split(".")
    place: Any = document
    for step in path:
        place = place[int(step)] if step.isdigit() else place[step]
    place[int(last) if last.isdigit() else last] = value
    return document  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "value", "reason"),
    [
        ("format", "ds-dip/plan", "field 'format' is 'ds-dip/plan', expected 'ds-dip/problem'"),
        ("version", 2, "field 'version' is 2, expected 1"),
        ("colour", 1, "unknown field 'colour'"),
        ("ranks", "two", "field 'ranks' of the file is 'two', expected an integer"),
        ("memory_capacity.0", "much", "memory_capacity\\[0\\] is 'much', expected a finite number"),
        ("tasks.1.rank", 1.5, "field 'rank' of tasks\\[1\\] is 1.5, expected an integer"),
        ("tasks.1.duration", None, "tasks\\[1\\].duration is None"),
        ("tasks.1.weight", 3, "tasks\\[1\\] has the unknown field 'weight'"),
        ("tasks.1", 7, "tasks\\[1\\] is 7, expected an object"),
        ("edges.0", [0, 1], "edges\\[0\\] is \\[0, 1\\], expected \\[before, after, delay\\]"),
        ("edges.0.2", -1, "the delay of edges\\[0\\] is -1"),
        ("edges.0.1", True, "edges\\[0\\] is .*, expected \\[before, after, delay\\]"),
        ("pairs", 3, "field 'pairs' of the file is 3, expected a list"),
        (
            "pairs",
            [{"forward": 0, "backward": 4, "weight": "x", "choices": []}],
            "field 'weight' of pairs\\[0\\] is 'x'",
        ),
        ("tasks.0.duration", 10**400, "holds the integer 1000"),
        *(
            (f"tasks.0.{name}", value, f"field '{name}' of tasks\\[0\\] is {value}, expected an integer from 0")
            for name in ("id", "microbatch", "sub", "chunk", "segment")
            for value in (-1, 10**18)
        ),
    ],
)
def test_a_wrong_field_is_refused_with_its_name_and_value(
    change: str, value: object, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(broken(change, value)))
    with pytest.raises(FileError, match=reason):
        read_problem(path)


def test_what_means_nothing_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(broken("tasks.1.id", 0)))
    with pytest.raises(ProblemError, match="problem.json: task id 0 is used twice"):
        read_problem(path)
    path.write_text(json.dumps(problem_document(uniform(2, 1, 2))).replace("1.0", "NaN", 1))
    with pytest.raises(FileError, match="holds the number NaN, expected a finite number"):
        read_problem(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "perfect"}, "field 'status' is 'perfect', expected one of optimal"),
        ({"makespan": 10**400}, "holds the integer 1000"),
        ({"tasks": [{"id": 0, "start": -1, "end": 1}]}, "tasks\\[0\\].start is -1, expected a finite number"),
        ({"tasks": [3]}, "field 'id' of tasks\\[0\\] is None"),
        ({"order": [3, 4]}, "order\\[0\\] is 3, expected a list of integers"),
        ({"order": [["a"]]}, "order\\[0\\] is \\['a'\\], expected a list of integers"),
        ({"choices": 7}, "field 'choices' of the file is 7, expected a list"),
        ({"choices": [0.5]}, "choices is \\[0.5\\], expected a list of integers"),
        ({"reason": 7}, "field 'reason' of the file is 7, expected a string"),
        ({"sufficient_capacity": [-1]}, "sufficient_capacity\\[0\\] is -1, expected a finite number"),
    ],
)
def test_a_plan_with_a_wrong_field_is_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", solve(uniform(2, 1, 2), evaluations=10).plan())
    document = json.loads((tmp_path / "plan.json").read_text()) | change
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(FileError, match=reason):
        read_plan(tmp_path / "plan.json")


def test_ranks_beyond_the_file_are_refused_at_once_where_chunks_are_left_out(tmp_path: Path) -> None:
    document = json.loads((DATA / "short.json").read_text()) | {"ranks": 10**9}
    document["tasks"][0]["rank"] = 10**9 - 1
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(ProblemError, match="memory_capacity has 2 values for 1000000000 ranks"):
        read_problem(tmp_path / "p.json")


def test_the_documented_problem_is_solved_with_its_memory_strategies() -> None:
    problem, _ = read_problem(Path(__file__).parent.parent / "docs" / "scheduling-problem.json")
    result = solve(problem, evaluations=2000)
    assert verify(problem, result.plan()) == []
    assert result.makespan == pytest.approx(0.105)
    assert result.schedule is not None
    assert len(result.schedule.choices) == len(problem.pairs)
