"""A problem's tasks and edges as arrays, and a quick look at whether they can be scheduled."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds_dip.scheduling.problem import KINDS, Problem
from ds_dip.scheduling.validation import BALANCE, LARGEST_ID, LARGEST_SUM, check_capacities, validate

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_INTEGERS = ("id", "rank", "chunk", "segment", "microbatch", "sub")
_NUMBERS = ("duration", "acquire", "release", "tail")
_CODE = {kind: number for number, kind in enumerate(KINDS)}


@dataclass(frozen=True, eq=False)
class Columns:
    """Fields of all tasks (n,), in the problem's order: ``integers`` and ``numbers`` by name.

    ``integers`` has ``module`` (numbered by name) and ``kind`` (0 F, 1 B, 2 W) too. Edges (e,) are
    task positions ``before`` and ``after`` with their ``delay``.
    """

    integers: dict[str, Ints]
    numbers: dict[str, Floats]
    before: Ints
    after: Ints
    delay: Floats


def columns_of(problem: Problem) -> Columns:
    """The checked columns of a problem; raises ProblemError at its first fault."""
    try:
        columns = _columns(problem, "iu", "iuf")
    except (TypeError, ValueError, KeyError, IndexError, OverflowError):
        validate(problem)
        # The thorough check has the last word: it takes what numpy has no plain numbers for.
        return _columns(problem, "biufO", "biufO")
    if problem.pairs or not _sound(problem, columns):
        validate(problem)
    return columns


def _columns(problem: Problem, whole: str, real: str) -> Columns:
    """Columns whose values numpy takes for one of the given kinds of numbers; TypeError for others."""

    def column(values: list[Any], kinds: str, kind: type) -> NDArray[Any]:
        found = np.array(values) if values else np.zeros(0, kind)
        if found.dtype.kind not in kinds or found.ndim != 1:
            raise TypeError(f"values of type {found.dtype}")
        return found.astype(kind)

    tasks, edges = problem.tasks, problem.edges
    names = {name: code for code, name in enumerate(sorted({task.module for task in tasks}))}
    integers = {name: column(list(map(attrgetter(name), tasks)), whole, np.int64) for name in _INTEGERS}
    integers["module"] = column([names[task.module] for task in tasks], whole, np.int64)
    integers["kind"] = column([_CODE[task.kind] for task in tasks], whole, np.int64)
    numbers = {name: column(list(map(attrgetter(name), tasks)), real, np.float64) for name in _NUMBERS}
    place = {number: position for position, number in enumerate(integers["id"].tolist())}
    before, after = (column([place[edge[side]] for edge in edges], whole, np.int64) for side in (0, 1))
    return Columns(integers, numbers, before, after, column([edge[2] for edge in edges], real, np.float64))


def _sound(problem: Problem, columns: Columns) -> bool:
    """Whether a problem without pairs is as ``validate`` wants it; False also where that cannot be told from here."""
    check_capacities(problem)
    integers, numbers = columns.integers, columns.numbers
    if min(int(values.min(initial=0)) for values in integers.values()) < 0:
        return False
    if max(int(values.max(initial=0)) for values in integers.values()) > LARGEST_ID:
        return False
    if integers["rank"].max(initial=-1) >= problem.ranks or len(np.unique(integers["id"])) < len(problem.tasks):
        return False
    most = LARGEST_SUM / (8 * (len(problem.tasks) + len(problem.edges) + 1))
    if not all(((values >= 0) & (values <= most)).all() for values in (*numbers.values(), columns.delay)):
        return False
    microbatch = np.unique(integers["microbatch"], return_inverse=True)[1].reshape(-1)
    key = microbatch * problem.ranks + integers["rank"]
    taken, given = (np.bincount(key, numbers[name]) for name in ("acquire", "release"))
    return bool((np.abs(taken - given) <= BALANCE * np.maximum(taken, given)).all())
