"""Problems and plans as files: ``ds-dip/problem`` 1 and ``ds-dip/plan`` 1, checked field by field on reading."""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ds_dip.files import FileError, read_json, write_json
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.plan import Plan
from ds_dip.scheduling.problem import Choice, Pair, Problem, ProblemError, Task
from ds_dip.scheduling.validation import LARGEST_ID

PROBLEM, PLAN = "ds-dip/problem", "ds-dip/plan"
_INTEGERS = ("id", "rank", "segment", "microbatch")
_NUMBERS = ("acquire", "release", "tail")


def read_problem(path: str | Path) -> tuple[Problem, str]:
    """A checked problem and the SHA-256 of the file's bytes; raises FileError or ProblemError."""
    document = read_json(path, PROBLEM)
    _known(path, "the file", document, ("format", "version", "ranks", "memory_capacity", "tasks", "edges", "pairs"))
    ranks = _field(path, "the file", document, "ranks", int)
    capacity = [
        None if value is None else _number(path, f"memory_capacity[{rank}]", value)
        for rank, value in enumerate(_field(path, "the file", document, "memory_capacity", list))
    ]
    rows = _field(path, "the file", document, "tasks", list)
    edges = tuple(
        _edge(path, position, edge) for position, edge in enumerate(_field(path, "the file", document, "edges", list))
    )
    tasks = [_task(path, position, row) for position, row in enumerate(rows)]
    rows = _field(path, "the file", document, "pairs", list) if "pairs" in document else []
    pairs = tuple(_pair(path, position, row) for position, row in enumerate(rows))
    try:
        if any(task.chunk < 0 for task in tasks):
            tasks = _chunks(tasks, edges, ranks, tuple(capacity))
        problem = Problem(ranks, tuple(capacity), tuple(tasks), edges, pairs)
        arrays_of(problem)
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from error
    return problem, hashlib.sha256(Path(path).read_bytes()).hexdigest()


def write_problem(path: str | Path, problem: Problem) -> None:
    """Write a problem atomically."""
    write_json(path, problem_document(problem))


def problem_document(problem: Problem) -> dict[str, Any]:
    """A problem as a JSON document."""
    document: dict[str, Any] = {
        "format": PROBLEM,
        "version": 1,
        "ranks": problem.ranks,
        "memory_capacity": list(problem.memory_capacity),
        "tasks": [{name: getattr(task, name) for name in Task.__slots__} for task in problem.tasks],
        "edges": [list(edge) for edge in problem.edges],
    }
    if problem.pairs:
        document["pairs"] = [_pair_document(pair) for pair in problem.pairs]
    return document


def read_plan(path: str | Path) -> Plan:
    """A plan; raises FileError naming the field that is wrong."""
    document = read_json(path, PLAN)
    where = "the file"
    tasks = []
    for position, row in enumerate(_field(path, where, document, "tasks", list)):
        name = f"tasks[{position}]"
        tasks.append(
            (
                _field(path, name, row, "id", int),
                _number(path, f"{name}.start", row.get("start")),
                _number(path, f"{name}.end", row.get("end")),
            )
        )
    orders = _field(path, where, document, "order", list)
    choices = _field(path, where, document, "choices", list) if "choices" in document else []
    reason = None if document.get("reason") is None else _field(path, where, document, "reason", str)
    sufficient = None
    if document.get("sufficient_capacity") is not None:
        sufficient = tuple(
            None if value is None else _number(path, f"sufficient_capacity[{rank}]", value)
            for rank, value in enumerate(_field(path, where, document, "sufficient_capacity", list))
        )
    return Plan(
        problem_sha256=_field(path, where, document, "problem_sha256", str),
        status=_one_of(path, document, "status", ("optimal", "feasible", "infeasible")),
        makespan=_number(path, "makespan", document.get("makespan")),
        lower_bound=_number(path, "lower_bound", document.get("lower_bound")),
        gap=_number(path, "gap", document.get("gap")),
        evaluations=_field(path, where, document, "evaluations", int),
        seconds=_number(path, "seconds", document.get("seconds")),
        seed=_field(path, where, document, "seed", int),
        tasks=tuple(tasks),
        order=tuple(_integers(path, f"order[{rank}]", ids) for rank, ids in enumerate(orders)),
        choices=_integers(path, "choices", choices),
        reason=reason,
        sufficient_capacity=sufficient,
    )


def write_plan(path: str | Path, plan: Plan) -> None:
    """Write a plan atomically."""
    document: dict[str, Any] = {"format": PLAN, "version": 1}
    document |= {name: getattr(plan, name) for name in Plan.__slots__ if name not in ("tasks", "reason")}
    document["tasks"] = [{"id": task, "start": start, "end": end} for task, start, end in plan.tasks]
    if plan.status == "infeasible":
        document["reason"] = plan.reason
    else:
        del document["sufficient_capacity"]
    write_json(path, document)


def _wrong(path: str | Path, name: str, value: object, expected: str) -> FileError:
    return FileError(f"{path}: {name} is {repr(value)[:80]}, expected {expected}")


def _known(path: str | Path, where: str, row: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in row:
        if name not in names:
            raise FileError(f"{path}: {where} has the unknown field {name!r}; known are {', '.join(names)}")


def _field(path: str | Path, where: str, row: Any, name: str, kind: type) -> Any:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(
            path, f"field {name!r} of {where}", value, {int: "an integer", str: "a string"}.get(kind, "a list")
        )
    return value


def _index(path: str | Path, where: str, row: Any, name: str) -> int:
    value: int = _field(path, where, row, name, int)
    if not 0 <= value <= LARGEST_ID:
        raise _wrong(path, f"field {name!r} of {where}", value, f"an integer from 0 to {LARGEST_ID}")
    return value


def _integers(path: str | Path, name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise _wrong(path, name, values, "a list of integers")
    return tuple(values)


def _number(path: str | Path, name: str, value: Any) -> float:
    # An integer above every float compares as less than infinity.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise _wrong(path, name, value, "a finite number of 0 or more")
    return float(value)


def _one_of(path: str | Path, row: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = row.get(name)
    if value not in allowed:
        raise _wrong(path, f"field {name!r}", value, f"one of {', '.join(allowed)}")
    return str(value)


def _task(path: str | Path, position: int, row: Any) -> Task:
    where = f"tasks[{position}]"
    if not isinstance(row, dict):
        raise _wrong(path, where, row, "an object")
    _known(path, where, row, tuple(Task.__slots__))
    identity = {name: _index(path, where, row, name) for name in _INTEGERS}
    numbers = {name: _number(path, f"{where}.{name}", row.get(name, 0.0)) for name in _NUMBERS}
    return Task(
        id=identity["id"],
        rank=identity["rank"],
        segment=identity["segment"],
        microbatch=identity["microbatch"],
        kind=_field(path, where, row, "kind", str),
        module=_field(path, where, row, "module", str),
        chunk=_index(path, where, row, "chunk") if "chunk" in row else -1,
        sub=_index(path, where, row, "sub") if "sub" in row else 0,
        duration=_number(path, f"{where}.duration", row.get("duration")),
        acquire=numbers["acquire"],
        release=numbers["release"],
        tail=numbers["tail"],
    )


def _edge(path: str | Path, position: int, edge: Any) -> tuple[int, int, float]:
    if not (isinstance(edge, list) and len(edge) == 3 and all(type(end) is int for end in edge[:2])):
        raise _wrong(path, f"edges[{position}]", edge, "[before, after, delay]")
    return edge[0], edge[1], _number(path, f"the delay of edges[{position}]", edge[2])


def _pair(path: str | Path, position: int, row: Any) -> Pair:
    where = f"pairs[{position}]"
    choices: list[Choice] = []
    for number, choice in enumerate(_field(path, where, row, "choices", list)):
        name = f"{where}.choices[{number}]"
        if not isinstance(choice, dict):
            raise _wrong(path, name, choice, "an object")
        _known(path, name, choice, tuple(Choice.__slots__))
        values = {key: _number(path, f"{name}.{key}", value) for key, value in choice.items() if value is not None}
        for key in ("forward_duration", "backward_duration", "memory"):
            _number(path, f"{name}.{key}", values.get(key))
        choices.append(Choice(**values))
    _known(path, where, row, ("forward", "backward", "weight", "choices"))
    weight = None if row.get("weight") is None else _index(path, where, row, "weight")
    forward, backward = (_index(path, where, row, name) for name in ("forward", "backward"))
    return Pair(forward, backward, tuple(choices), weight)


def _pair_document(pair: Pair) -> dict[str, Any]:
    document: dict[str, Any] = {"forward": pair.forward, "backward": pair.backward, "choices": []}
    if pair.weight is not None:
        document["weight"] = pair.weight
    for choice in pair.choices:
        values = {name: getattr(choice, name) for name in Choice.__slots__}
        document["choices"].append({name: value for name, value in values.items() if value is not None})
    return document


def _chunks(
    tasks: list[Task],
    edges: tuple[tuple[int, int, float], ...],
    ranks: int,
    capacity: tuple[float | None, ...],
) -> list[Task]:
    """Tasks without a chunk get their place along their module's chain; backwards run it in reverse."""
    bare = [replace(task, chunk=max(0, task.chunk), acquire=0.0, release=0.0) for task in tasks]
    arrays = arrays_of(Problem(ranks, capacity, tuple(bare), edges))
    rows: dict[tuple[object, ...], list[Task]] = defaultdict(list)
    for task in tasks:
        rows[task.kind, task.module, task.microbatch, task.sub].append(task)
    chunk: dict[int, int] = {}
    for (kind, *_), members in rows.items():
        members.sort(key=lambda task: int(arrays.depth[arrays.index[task.id]]), reverse=kind != "F")
        chunk |= {task.id: place for place, task in enumerate(members)}
    return [replace(task, chunk=chunk[task.id]) if task.chunk < 0 else task for task in tasks]
