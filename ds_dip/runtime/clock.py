"""When stages really ran: the accelerator's own events where it is asynchronous, a monotonic clock elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deepspeed.accelerator import get_accelerator

from ds_dip.programs.program import Stage


@dataclass(frozen=True, slots=True)
class Interval:
    """A stage's start and end in seconds of the machine's monotonic clock."""

    stage: Stage
    start: float
    end: float


class Clock:
    """Measures the stages of one batch; reading the times waits for the device once, at the end."""

    def __init__(self) -> None:
        self._events = not get_accelerator().is_synchronized_device()
        self._origin: tuple[float, Any] = (0.0, None)
        self._marks: list[tuple[Stage, Any, Any]] = []

    def begin(self) -> None:
        """Start a batch."""
        self._marks = []
        self._origin = (time.monotonic(), self._mark())

    def measure(self, stage: Stage, run: Callable[[], None]) -> None:
        """Run a stage between two marks."""
        start = self._mark()
        run()
        self._marks.append((stage, start, self._mark()))

    def end(self) -> list[Interval]:
        """The batch's intervals, in the order they ran."""
        if self._events and self._marks:
            self._marks[-1][2].synchronize()
        return [Interval(stage, self._seconds(start), self._seconds(end)) for stage, start, end in self._marks]

    def _mark(self) -> Any:
        if not self._events:
            return time.monotonic()
        event = get_accelerator().Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, mark: Any) -> float:
        if not self._events:
            return float(mark)
        began, event = self._origin
        return began + float(event.elapsed_time(mark)) / 1000.0
