"""Later work that a rank could do while it does nothing, and whether memory or the order alone kept it back.

All gaps of all ranks are filled with later tasks in the order of time, as soon as their inputs are there; what is done
so early gives its output as early, to all ranks. A task fits where neither it nor what runs between the gap and its own
place would then exceed its rank's memory; nor does one whose input came of work that did not fit.

Where a rank is filled is a loss only as far as another order could be shorter. By the lower bound, no order with this
memory takes more than ``makespan - bound`` off, and none with any memory more than the same without capacities: a
rank's missed work that fits is at most the former, all of it at most the latter, the earliest first.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from ds_dip.explaining.view import View
from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.bounds import strongest


class Missed(NamedTuple):
    """A time in a gap in which ``task`` could have run, but for memory (``fits`` is false) or for the order."""

    start: float
    end: float
    task: int
    fits: bool


def missed_work(view: View) -> list[list[Missed]]:
    """What every rank could have done in its gaps, in the order of time; nothing where no order could be shorter."""
    shorter, anyhow = _losses(view)
    if anyhow <= view.same:
        return [[] for _ in view.orders]
    return [_at_most(own, shorter, anyhow, view.same) for own in _Filling(view).run()]


def _losses(view: View) -> tuple[float, float]:
    """How much shorter the batch could be at most, with this memory and with any; seconds."""
    arrays = view.arrays
    if view.measured:
        arrays = replace(arrays, duration=view.end - view.start, cache={})
    free: Arrays = replace(arrays, capacity=np.full(arrays.ranks, np.inf), cache={})
    bound, unlimited = strongest(arrays)[0], strongest(free)[0]
    return max(0.0, view.until - bound), max(0.0, view.until - min(bound, unlimited))


def _at_most(found: list[Missed], fitting: float, every: float, same: float) -> list[Missed]:
    """The first ``every`` seconds of them, of which ``fitting`` may fit."""
    kept = []
    for own in found:
        seconds = min(own.end - own.start, every, fitting if own.fits else every)
        if seconds <= same:
            continue
        kept.append(own._replace(end=own.start + seconds))
        every -= seconds
        fitting -= seconds if own.fits else 0.0
    return kept


class _Filling:
    """Gaps filled with later work, event by event: inputs that arrive, and ranks that have nothing to do."""

    def __init__(self, view: View) -> None:
        self._view, arrays = view, view.arrays
        self._start, self._rank = view.start.tolist(), arrays.rank.tolist()
        self._left = (view.end - view.start).tolist()
        self._filled = [False] * arrays.n
        self._ended = view.end.tolist()
        self._done = list(self._ended)
        self._arrival = view.arrival.tolist()
        self._succ = [arrays.succ[a:b].tolist() for a, b in zip(arrays.succ_ptr, arrays.succ_ptr[1:], strict=False)]
        self._pred = [
            list(zip(arrays.pred[a:b].tolist(), arrays.pred_delay[a:b].tolist(), strict=True))
            for a, b in zip(arrays.pred_ptr, arrays.pred_ptr[1:], strict=False)
        ]
        self._place = [0] * arrays.n
        for order in view.orders:
            for place, task in enumerate(order):
                self._place[task] = place
        self._held = [view.held[order] for order in view.orders]
        self._peak = [view.held[order] + arrays.acquire[order] for order in view.orders]
        #: Filled tasks that did not fit: until they really end nothing that needs them fits.
        self._unfit = [False] * arrays.n
        self._ready: list[list[tuple[int, int]]] = [[] for _ in view.orders]
        self._free = [0.0] * arrays.ranks
        self._missed: list[list[Missed]] = [[] for _ in view.orders]

    def run(self) -> list[list[Missed]]:
        """What was filled, by rank."""
        gaps = [self._gaps(order) for order in self._view.orders]
        number = [0] * len(gaps)
        events: list[tuple[float, int, int]] = []
        for task, at in enumerate(self._arrival):
            heappush(events, (at, 0, task))
        for rank, own in enumerate(gaps):
            for start, _, _ in own:
                heappush(events, (start, 1, rank))
        while events:
            at, look, which = heappop(events)
            rank = which if look else self._rank[which]
            if not look:
                if at > self._arrival[which] + self._view.same:
                    continue
                heappush(self._ready[rank], (self._place[which], which))
            own = gaps[rank]
            while number[rank] < len(own) and own[number[rank]][1] <= at:
                number[rank] += 1
            if number[rank] == len(own) or own[number[rank]][0] > at or self._free[rank] > at:
                continue
            _, end, place = own[number[rank]]
            until = self._fill(rank, place, at, end, events)
            if until is not None:
                self._free[rank] = until
                heappush(events, (until, 1, rank))
        return self._missed

    def _gaps(self, order: list[int]) -> list[tuple[float, float, int]]:
        """Every gap's start, when the input of the task after it is there, and that one's place in the order."""
        found, free = [], 0.0
        for place, task in enumerate(order):
            ready = min(self._start[task], self._arrival[task])
            if ready - free > self._view.same:
                found.append((free, ready, place))
            free = max(free, float(self._view.end[task]))
        return found

    def _fill(self, rank: int, place: int, at: float, end: float, events: list[tuple[float, int, int]]) -> float | None:
        """Run the first later task that is ready until it or the gap ends, and when that is; None without one."""
        ready = self._ready[rank]
        while ready:
            own, task = ready[0]
            if own < place or self._filled[task]:
                heappop(ready)
                continue
            break
        else:
            return None
        fits = self._fits(rank, place, own, task, at)
        until = min(end, at + float(self._left[task]))
        if until > at:
            self._missed[rank].append(Missed(at, until, task, fits))
        self._left[task] -= until - at
        if self._left[task] <= self._view.same:
            self._filled[task] = True
            self._unfit[task] = not fits
            self._finish(task, until, events)
            if fits:
                claim = float(self._view.arrays.acquire[task] - self._view.arrays.release[task])
                self._held[rank][place:own] += claim
                self._peak[rank][place:own] += claim
        return until

    def _fits(self, rank: int, place: int, own: int, task: int, at: float) -> bool:
        arrays, limit = self._view.arrays, float(self._view.limit[rank])
        if any(self._unfit[source] and self._ended[source] + delay > at for source, delay in self._pred[task]):
            return False
        if self._held[rank][place] + arrays.acquire[task] > limit:
            return False
        most = float(self._peak[rank][place:own].max(initial=0.0))
        return most + float(arrays.acquire[task] - arrays.release[task]) <= limit

    def _finish(self, task: int, at: float, events: list[tuple[float, int, int]]) -> None:
        """A task is done early: what needs it may have its input earlier."""
        self._done[task] = min(self._done[task], at)
        for after in self._succ[task]:
            arrival = max(self._done[source] + delay for source, delay in self._pred[after])
            if arrival < self._arrival[after] - self._view.same:
                self._arrival[after] = arrival
                heappush(events, (max(arrival, at), 0, after))
