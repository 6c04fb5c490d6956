"""Orders as the schedule CSV of torch.distributed.pipelining: a row a rank, ``2F0,3I1,1W4``.

An action is a stage, what it does (``F`` forward, ``B`` whole backward, ``I`` and ``W`` its two parts) and a
microbatch. Stages are one chain over the ranks, and every microbatch goes through all of them once: that is all the
CSV can say. It has no times, no memory strategies and no messages.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ds_dip.files import read_text
from ds_dip.scheduling.arrays import arrays_of
from ds_dip.scheduling.problem import Problem, ScheduleError, Task
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.timing import fits, levels, positions

_ACTION = re.compile(r"(\d{1,9})(F|B|I|W)(\d{1,9})")
#: What lowering adds to an order: it follows from the order, and is left out.
_LOWERED = re.compile(r"\d{1,9}(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d{0,9}")
#: A forward and a backward that torch runs at once; here one follows the other.
_OVERLAPPED = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_KIND = {"F": "F", "I": "B", "W": "W"}
_MOST_BYTES = 1 << 26


class ActionError(ValueError):
    """A problem or an order that the CSV cannot say, or actions that are no order of the problem."""


@dataclass(frozen=True)
class Actions:
    """A problem's tasks as actions: the task's id by (stage, kind of the task, microbatch), both counted from 0."""

    task: Mapping[tuple[int, str, int], int]

    def name(self, key: tuple[int, str, int]) -> str:
        """An action as the CSV has it: a backward is whole where no weight gradients are apart from it."""
        stage, kind, microbatch = key
        if kind == "B" and (stage, "W", microbatch) in self.task:
            kind = "I"
        return f"{stage}{kind}{microbatch}"


def actions_of(problem: Problem) -> Actions:
    """The problem's actions; raises ActionError, with what the CSV cannot say, where it has others."""
    tasks = {task.id: task for task in problem.tasks}
    numbers = {own: place for place, own in enumerate(sorted({task.microbatch for task in problem.tasks}))}
    forwards: dict[int, list[Task]] = {own: [] for own in numbers}
    for task in problem.tasks:
        if task.sub:
            raise ActionError(
                f"microbatch {task.microbatch} of module {task.module} is in sub-microbatches, and torch's schedule "
                "CSV has none: give every module a whole microbatch (sub_microbatch whole)"
            )
        if task.kind == "F":
            forwards[task.microbatch].append(task)
    arrays = arrays_of(problem)
    stages: dict[tuple[str, int], int] = {}
    for microbatch, own in forwards.items():
        own.sort(key=lambda task: int(arrays.depth[arrays.index[task.id]]))
        names = {(task.module, task.chunk): place for place, task in enumerate(own)}
        if stages and names != stages:
            odd = sorted({*names} ^ {*stages})
            what = f"{odd[0][0]}, chunk {odd[0][1]}" if odd else "its stages in another order"
            raise ActionError(
                f"microbatch {microbatch} has other stages than microbatch {min(numbers)} ({what}), and in torch's "
                "schedule CSV every microbatch goes through the same: give all of them instances of every module"
            )
        stages = names
    _one_chain(problem, forwards)
    found: dict[tuple[int, str, int], int] = {}
    for task in tasks.values():
        stage = stages.get((task.module, task.chunk))
        if stage is None:
            raise ActionError(f"task {task.id} has no forward of its stage, which torch's schedule CSV needs")
        found[stage, task.kind, numbers[task.microbatch]] = task.id
    return Actions(found)


def _one_chain(problem: Problem, forwards: Mapping[int, list[Task]]) -> None:
    """Raise ActionError where a forward takes more, or something else, than the output of the stage before it."""
    place = {task.id: (microbatch, number) for microbatch, own in forwards.items() for number, task in enumerate(own)}
    joined = {(before, after) for before, after, _ in problem.edges if before in place and after in place}
    wanted = {(one.id, other.id) for own in forwards.values() for one, other in pairwise(own)}
    for before, after in sorted(joined ^ wanted):
        raise ActionError(
            f"forwards {before} and {after} are not stages of one chain, which is all that torch's schedule CSV knows: "
            "modules side by side cannot be said in it"
        )


def order_text(problem: Problem, schedule: Schedule) -> str:
    """The schedule's order as CSV; raises ActionError where it cannot be said in it."""
    actions = actions_of(problem)
    key = {task: own for own, task in actions.task.items()}
    positions(arrays_of(problem).with_choices(schedule.choices), schedule)
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    for order in schedule.order:
        writer.writerow([actions.name(key[task]) for task in order])
    return stream.getvalue()


def read_order(path: str | Path, problem: Problem) -> Schedule:
    """A CSV's order of a problem; pairs take the first choices that fit into memory, of those that all take alike.

    Raises FileError for a file that cannot be read, ActionError, naming rank and action, for what is no order of this
    problem.
    """
    text = read_text(path, "a schedule CSV of torch.distributed.pipelining", _MOST_BYTES)
    actions, rank_of = actions_of(problem), {task.id: task.rank for task in problem.tasks}
    orders: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for rank, row in enumerate(csv.reader(io.StringIO(text, newline=""))):
        order = []
        for number, cell in enumerate(row):
            where = f"{path}: rank {rank}, action {number + 1}"
            for task in _tasks(where, cell, actions):
                if rank_of[task] != rank:
                    raise ActionError(f"{where} is {cell.strip()!r}, a stage of rank {rank_of[task]} in the problem")
                if task in seen:
                    raise ActionError(f"{where} is {cell.strip()!r}, which was run before; run every action once")
                seen.add(task)
                order.append(task)
        orders.append(tuple(order))
    if len(orders) != problem.ranks:
        raise ActionError(f"{path}: has {len(orders)} rows, the problem {problem.ranks} ranks; give a row a rank")
    if missing := [key for key, task in actions.task.items() if task not in seen]:
        raise ActionError(f"{path}: {actions.name(min(missing))} is never run; give every action of the problem")
    return _with_choices(problem, tuple(orders))


def _tasks(where: str, cell: str, actions: Actions) -> Iterator[int]:
    """The tasks of a cell, in the order in which they run."""
    text = cell.strip()
    if overlapped := _OVERLAPPED.fullmatch(text):
        for part in overlapped.group(1).split(";"):
            yield from _tasks(where, part, actions)
        return
    if not text or _LOWERED.fullmatch(text):
        return
    if not (found := _ACTION.fullmatch(text)):
        raise ActionError(f"{where} is {text[:40]!r}, expected a stage, F, B, I or W, and a microbatch, such as 2F0")
    stage, kind, microbatch = int(found.group(1)), found.group(2), int(found.group(3))
    split = (stage, "W", microbatch) in actions.task
    if kind == "B" and split:
        yield from (actions.task[stage, part, microbatch] for part in "BW")
        return
    if kind in "IW" and not split:
        raise ActionError(
            f"{where} is {text!r}, and the problem's backward of that stage is whole: give B, or split it"
        )
    key = (stage, _KIND.get(kind, kind), microbatch)
    if key not in actions.task:
        raise ActionError(f"{where} is {text!r}, which the problem does not have; give its stages and microbatches")
    yield actions.task[key]


def _with_choices(problem: Problem, order: tuple[tuple[int, ...], ...]) -> Schedule:
    arrays, tried = arrays_of(problem), levels(problem)
    for choices in tried:
        chosen, schedule = arrays.with_choices(choices), Schedule(order, choices)
        if fits(chosen, positions(chosen, schedule)):
            return schedule
    raise ScheduleError(
        "the order needs more memory than some rank has, whatever the memory strategies; raise the capacity"
    )
