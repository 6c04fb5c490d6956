"""A schedule and its times as arrays, and what every task waited for last: the chains that bubbles hang on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ds_dip.scheduling.arrays import Arrays, arrays_of
from ds_dip.scheduling.columns import Floats
from ds_dip.scheduling.problem import Problem, ScheduleError
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.static import stages
from ds_dip.scheduling.timing import Orders, positions, starts

#: Times that differ by less than this share of the makespan are the same.
SAME = 1e-9
#: What a moment of a chain is: a task runs, its message is on its way, it could start, or all tasks are done.
RUN, TRANSFER, LATE, ENDING = "run", "transfer", "late", "ending"


class Times(NamedTuple):
    """Start and end by task id, in seconds from the batch's start, and where the batch ends."""

    start: Mapping[int, float]
    end: Mapping[int, float]
    until: float


class Span(NamedTuple):
    """A time on the chain of what a task waited for, by kind: ``task`` is who ran, sends, is late, or was the last."""

    start: float
    end: float
    kind: str
    task: int


@dataclass(frozen=True, eq=False)
class View:
    """Tasks by position in ``arrays`` (n,), in ``orders`` per rank, with ``start`` and ``end`` (n,) up to ``until``.

    ``measured`` times need not keep to predicted transfers: a message takes until the task that needs it starts.
    """

    arrays: Arrays
    orders: Orders
    start: Floats
    end: Floats
    until: float
    measured: bool

    @cached_property
    def same(self) -> float:
        """Seconds that are none."""
        return SAME * self.until

    @cached_property
    def before(self) -> list[int]:
        """The task before each on its rank, -1 for the first, (n,)."""
        found = [-1] * self.arrays.n
        for order in self.orders:
            for one, other in pairwise(order):
                found[other] = one
        return found

    @cached_property
    def arrival(self) -> Floats:
        """When the input of each task is there, (n,); 0 where it needs none."""
        arrays, found = self.arrays, np.zeros(self.arrays.n)
        target = np.repeat(np.arange(arrays.n), np.diff(arrays.pred_ptr))
        np.maximum.at(found, target, self.end[arrays.pred] + arrays.pred_delay)
        return found

    @cached_property
    def last_input(self) -> list[tuple[int, float]]:
        """Of each task, whose output it had last, and the seconds of its message; (-1, 0) where it needs none."""
        arrays, found = self.arrays, [(-1, 0.0)] * self.arrays.n
        pointer, source, delay = arrays.pred_ptr.tolist(), arrays.pred.tolist(), arrays.pred_delay.tolist()
        end = self.end.tolist()
        for task in range(arrays.n):
            edges = range(pointer[task], pointer[task + 1])
            if edges:
                last = max(edges, key=lambda edge: (end[source[edge]] + delay[edge], -delay[edge], -source[edge]))
                found[task] = source[last], delay[last]
        return found

    @cached_property
    def held(self) -> Floats:
        """Memory that a rank holds before each task, (n,)."""
        found = np.zeros(self.arrays.n)
        for order in self.orders:
            change = (self.arrays.acquire - self.arrays.release)[order]
            found[order] = np.cumsum(change) - change
        return found

    @cached_property
    def work(self) -> Floats:
        """Seconds of tasks of every rank, (ranks,)."""
        found = np.bincount(self.arrays.rank, self.end - self.start, minlength=self.arrays.ranks)
        return np.asarray(found, dtype=np.float64)

    @cached_property
    def means(self) -> Floats:
        """The mean seconds of each task's stage, which is its rank, kind, module and chunk, (n,)."""
        stage = stages(self.arrays)
        return (np.bincount(stage, self.end - self.start) / np.maximum(np.bincount(stage), 1))[stage]

    @cached_property
    def limit(self) -> Floats:
        """Memory that a rank may hold, with room for rounding, (ranks,)."""
        return self.arrays.capacity * (1 + SAME)

    @cached_property
    def last(self) -> int:
        """The task whose end, with its tail where that is planned, is the last of the batch; -1 without tasks."""
        ends = self.end if self.measured else self.end + self.arrays.tail
        return int(np.argmax(ends)) if self.arrays.n else -1

    def waited_for(self, task: int) -> tuple[int, bool]:
        """What a task waited for last, -1 for nothing, and whether for its output or for its end on the rank alone."""
        source, delay = self.last_input[task]
        ahead = self.before[task]
        if source < 0 or (ahead >= 0 and self.end[ahead] > self.end[source] + delay + self.same):
            return ahead, False
        return source, True

    def needs_memory_of(self, task: int, ahead: int) -> bool:
        """Whether a task whose input was there could not have run before the one ahead of it, for memory alone."""
        if self.arrival[task] > self.start[ahead] + self.same:
            return False
        arrays, held, limit = self.arrays, self.held[ahead], self.limit[self.arrays.rank[task]]
        both = held + arrays.acquire[task] - arrays.release[task] + arrays.acquire[ahead]
        return bool(max(held + arrays.acquire[task], both) > limit)

    def chain(self, task: int) -> Iterator[Span]:
        """The time before a task's start, backwards to 0, by what it waited for: spans that follow without a gap.

        A span of kind ``LATE`` has the task that could have started then, one of a transfer the task that sends.
        """
        until = float(self.start[task])
        while until > 0:
            source, output = self.waited_for(task)
            if source < 0:
                yield Span(0.0, until, LATE, task)
                return
            ended = min(float(self.end[source]), until)
            crosses = output and self.arrays.rank[source] != self.arrays.rank[task]
            arrived = until
            if not (self.measured and crosses):
                arrived = min(until, ended + (self.last_input[task][1] if output else 0.0))
                if until - arrived > self.same:
                    yield Span(arrived, until, LATE, task)
                else:
                    arrived = until
            if arrived - ended > self.same:
                yield Span(ended, arrived, TRANSFER, source)
            else:
                ended = arrived
            begun = min(float(self.start[source]), ended)
            if ended > begun:
                yield Span(begun, ended, RUN, source)
            task, until = source, begun


def view_of(problem: Problem, schedule: Schedule, times: Times | None = None, *, measured: bool = False) -> View:
    """The view of a schedule, by its earliest times or those given.

    Raises ScheduleError where the schedule does not fit the problem, or a task has no times.
    """
    arrays = arrays_of(problem).with_choices(schedule.choices)
    orders = positions(arrays, schedule)
    if times is None:
        start = starts(arrays, orders)
        end = start + arrays.duration
        return View(arrays, orders, start, end, float((end + arrays.tail).max(initial=0.0)), measured)
    try:
        start = np.array([times.start[task] for task in arrays.id.tolist()], dtype=np.float64)
        end = np.array([times.end[task] for task in arrays.id.tolist()], dtype=np.float64)
    except KeyError as missing:
        raise ScheduleError(f"task {missing} has no times; give the start and end of every task") from missing
    if not (start <= end).all() or not np.isfinite(end).all():
        raise ScheduleError("a task ends before it starts, or never; give finite times")
    until = max(float(times.until), float(end.max(initial=0.0)))
    return View(arrays, orders, np.maximum(start, 0.0), np.maximum(end, 0.0), until, measured)
