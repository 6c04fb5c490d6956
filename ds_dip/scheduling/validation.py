"""What a problem must be before it is scheduled; each refusal is one sentence."""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from ds_dip.scheduling.problem import KINDS, Choice, Pair, Problem, ProblemError, Task

BALANCE = 1e-9
"""How far a microbatch's acquires and releases on a rank may differ, relative to the larger."""

LARGEST_ID = 2**31 - 1
"""Ids, microbatches, sub-microbatches, chunks and segments go from 0 to this."""

LARGEST_SUM = 1e300
"""All times of a problem together, and all of its memory, are at most this: the search adds and scales them."""


def validate(problem: Problem) -> None:
    """Raise ProblemError at the first fault (cycles are found when the arrays are made)."""
    check_capacities(problem)
    by_id = _tasks(problem)
    for before, after, delay in problem.edges:
        for end in (before, after):
            if end not in by_id:
                raise ProblemError(f"edge [{before}, {after}] names task {end}, which does not exist; add it")
        if not _good(delay):
            raise ProblemError(f"edge [{before}, {after}] has delay {delay!r}; give a finite number of 0 or more")
    used: set[int] = set()
    for position, pair in enumerate(problem.pairs):
        _pair(position, pair, by_id, used)
    _sums(problem)
    _balance(problem)


NUMBERS = (int, float, np.integer, np.floating)


def _good(value: float) -> bool:
    # An integer above every float compares as less than infinity.
    return isinstance(value, NUMBERS) and 0 <= value <= sys.float_info.max


def check_capacities(problem: Problem) -> None:
    """Raise ProblemError where ranks and capacities do not go together."""
    if problem.ranks < 1:
        raise ProblemError(f"ranks is {problem.ranks}; a problem needs at least 1 rank")
    if len(problem.memory_capacity) != problem.ranks:
        raise ProblemError(
            f"memory_capacity has {len(problem.memory_capacity)} values for {problem.ranks} ranks; give one a rank"
        )
    for rank, capacity in enumerate(problem.memory_capacity):
        if capacity is not None and not _good(capacity):
            raise ProblemError(
                f"memory_capacity of rank {rank} is {capacity!r}; give a finite number of 0 or more, or null"
            )


def _tasks(problem: Problem) -> dict[int, Task]:
    by_id: dict[int, Task] = {}
    for task in problem.tasks:
        if task.id in by_id:
            raise ProblemError(f"task id {task.id} is used twice; give every task an id of its own")
        by_id[task.id] = task
        identity = (task.id, task.chunk, task.segment, task.microbatch, task.sub)
        if min(identity) < 0 or max(identity) > LARGEST_ID:
            names = zip(("id", "chunk", "segment", "microbatch", "sub"), identity, strict=True)
            name, value = next((name, value) for name, value in names if not 0 <= value <= LARGEST_ID)
            raise ProblemError(f"task {task.id} has {name} {value}; give an integer from 0 to {LARGEST_ID}")
        if not 0 <= task.rank < problem.ranks:
            raise ProblemError(f"task {task.id} is on rank {task.rank}, expected 0 to {problem.ranks - 1}")
        if task.kind not in KINDS:
            raise ProblemError(f"task {task.id} is of kind {task.kind!r}, expected one of {', '.join(KINDS)}")
        if not (_good(task.duration) and _good(task.acquire) and _good(task.release) and _good(task.tail)):
            for name in ("duration", "acquire", "release", "tail"):
                value = getattr(task, name)
                if not _good(value):
                    raise ProblemError(f"task {task.id} has {name} {value!r}; give a finite number of 0 or more")
    return by_id


def _sums(problem: Problem) -> None:
    """What a schedule may add up, whatever its order and its choices, must be a number."""
    chosen = [choice for pair in problem.pairs for choice in pair.choices]
    for what, numbers in (
        ("durations, delays and tails", [
            *(value for task in problem.tasks for value in (task.duration, task.tail)),
            *(delay for _, _, delay in problem.edges),
            *(value for c in chosen for value in (c.forward_duration, c.backward_duration, c.weight_duration or 0.0)),
        ]),
        ("acquires and releases", [
            *(value for task in problem.tasks for value in (task.acquire, task.release)),
            *(value for choice in chosen for value in (choice.memory, choice.backward_acquire)),
        ]),
    ):  # fmt: skip
        total = sum(numbers)
        if not total <= LARGEST_SUM:
            raise ProblemError(
                f"the {what} add up to {total:g}, the largest is {max(numbers):g}; "
                f"give them in a larger unit, at most {LARGEST_SUM:g} together"
            )


def _pair(position: int, pair: Pair, by_id: dict[int, Task], used: set[int]) -> None:
    members = [(pair.forward, "F"), (pair.backward, "B")]
    if pair.weight is not None:
        members.append((pair.weight, "W"))
    for member, kind in members:
        if member not in by_id:
            raise ProblemError(f"pair {position} names task {member}, which does not exist; add it")
        task = by_id[member]
        if task.kind != kind:
            raise ProblemError(f"pair {position} uses task {member} as {kind}, but its kind is {task.kind}")
        if member in used:
            raise ProblemError(f"task {member} is in two pairs; a task may be in one at most")
        used.add(member)
        first = by_id[pair.forward]
        if (task.rank, task.microbatch) != (first.rank, first.microbatch):
            raise ProblemError(f"pair {position} joins tasks of different ranks or microbatches; pair a stage's own")
    if by_id[pair.forward].release:
        raise ProblemError(f"pair {position}: forward task {pair.forward} has a release; a pair's memory ends with it")
    if not pair.choices:
        raise ProblemError(f"pair {position} has no choices; give at least one or leave the pair out")
    for number, choice in enumerate(pair.choices):
        _choice(f"choice {number} of pair {position}", choice, pair.weight is not None)


def _choice(where: str, choice: Choice, weighted: bool) -> None:
    for name in ("forward_duration", "backward_duration", "memory", "backward_acquire"):
        if not _good(getattr(choice, name)):
            raise ProblemError(f"{where} has {name} {getattr(choice, name)!r}; give a finite number of 0 or more")
    if weighted != (choice.weight_duration is not None):
        raise ProblemError(f"{where}: weight_duration goes with a weight task; give both or neither")
    if choice.weight_duration is not None and not _good(choice.weight_duration):
        raise ProblemError(f"{where} has weight_duration {choice.weight_duration!r}; give a finite number of 0 or more")


def _balance(problem: Problem) -> None:
    acquired: dict[tuple[int, int], float] = defaultdict(float)
    released: dict[tuple[int, int], float] = defaultdict(float)
    for task in problem.tasks:
        acquired[task.rank, task.microbatch] += task.acquire
        released[task.rank, task.microbatch] += task.release
    for (rank, microbatch), taken in acquired.items():
        given = released[rank, microbatch]
        if abs(taken - given) > BALANCE * max(taken, given):
            raise ProblemError(
                f"microbatch {microbatch} acquires {taken:g} and releases {given:g} on rank {rank}; "
                "make its releases equal its acquires"
            )
