"""Waiting as long as told, on cores that others need; the clock whose stages last as long as planned."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Mapping

from ds_dip.programs.program import Stage
from ds_dip.runtime.clock import Clock

_PR_SET_TIMERSLACK = 29


def wait_until(moment: float) -> None:
    """Sleep until the monotonic clock shows ``moment`` or later; at once where it has passed."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def wake_punctually() -> None:
    """Have the kernel wake this thread when it asks: by default it may come 50 us later. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


class EmulatedClock(Clock):
    """A clock whose stages end no earlier than their planned seconds after they started.

    The little that a twin's stage computes is part of it.
    """

    def __init__(self) -> None:
        super().__init__()
        # A device that runs ahead of its host has nothing to do with a host that waits.
        self._events = False
        self._seconds_of: Mapping[Stage, float] = {}

    def expect(self, seconds: Mapping[Stage, float]) -> None:
        """Stages last so long from now on."""
        self._seconds_of = seconds

    def measure(self, stage: Stage, run: Callable[[], None]) -> None:
        """Run a stage between two marks, the second one when its time is over."""
        start = time.monotonic()
        run()
        wait_until(start + self._seconds_of[stage])
        self._marks.append((stage, start, time.monotonic()))
