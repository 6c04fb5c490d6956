"""Work that a rank had while it did nothing: tasks whose input was there, and whether they would have fitted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ds_dip.explaining.view import View


class Missed(NamedTuple):
    """A time in a gap in which ``task`` could have run, but for memory (``fits`` is false) or for the order."""

    start: float
    end: float
    task: int
    fits: bool


class ReadyWork:
    """The later tasks of one rank that could have run in its gaps; each of them fills one gap only, the first.

    A task fits where neither it nor what runs between the gap and its own place would then exceed the rank's memory.
    """

    def __init__(self, view: View, rank: int) -> None:
        self._view = view
        arrays, order = view.arrays, np.array(view.orders[rank], dtype=np.int64)
        self._order = order
        self._arrival, self._duration = view.arrival[order], arrays.duration[order]
        self._acquire = arrays.acquire[order]
        self._claim = self._acquire - arrays.release[order]
        self._held = view.held[order]
        self._limit = view.limit[rank]
        self._left = self._duration > view.same

    def missed(self, place: int, start: float, end: float) -> list[Missed]:
        """What could have run in the gap before the task at ``place`` of the order, in the order of time."""
        found: list[Missed] = []
        same = self._view.same
        left = place + 1 + np.nonzero(self._left[place + 1 :] & (self._arrival[place + 1 :] < end - same))[0]
        # What the rank would hold before, and at most during, each task from the gap on.
        held = self._held[place:].copy()
        at = start
        while len(left) and end - at > same:
            ready = left[self._arrival[left] <= at + same]
            if not len(ready):
                at = float(self._arrival[left].min())
                continue
            most = np.maximum.accumulate(held + self._acquire[place:])
            fits = (held[0] + self._acquire[ready] <= self._limit) & (
                most[ready - place - 1] + self._claim[ready] <= self._limit
            )
            chosen = int(ready[np.argmax(fits)])
            until = min(end, at + float(self._duration[chosen]))
            found.append(Missed(at, until, int(self._order[chosen]), bool(fits.any())))
            if fits.any():
                held[: chosen - place] += self._claim[chosen]
            self._left[chosen] = False
            left, at = left[left != chosen], until
        return found
