"""``python -m ds_dip.planner DESCRIPTOR PARENT``: the planner's own process, started by its leader's client.

It imports neither torch nor the user's script, runs at low priority on one thread, and ends when
its leader does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from statistics import median
from typing import Any

from ds_dip.costs.corrections import Corrections
from ds_dip.planner.plan import Planner
from ds_dip.planner.record import encode_plan
from ds_dip.planner.wire import FITS, SETTINGS, Wire, WireError
from ds_dip.scheduling import warm

_PR_SET_PDEATHSIG = 1
#: Of a step's time, what the search may take; the rest of a plan's making needs some too.
SHARE = 0.5


def serve(wire: Wire) -> None:
    """Plan ahead until the leader is gone.

    Raises WireError when it is, and ValueError for settings that mean nothing.
    """
    message = wire.receive(None)
    if message is None or message[0] != "settings" or len(message) != 5:
        raise ValueError(f"the first message is {repr(message)[:80]}, expected the settings")
    _, packed, first, paths, niceness = message
    lower_priority(niceness)
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    settings = SETTINGS.decode(packed)
    planner = Planner(settings)
    warm()
    # What was imported and opened stays: a full collection of it would make a plan late now and then.
    gc.collect()
    gc.freeze()
    wire.send(["ready"], 60.0)
    wanted = step = int(first)
    pace = Pace()
    while True:
        idle = step > wanted + settings.ahead
        message = wire.receive(None if idle else 0.0)
        if message is not None:
            newest = _heed(message, planner, wanted)
            # A step that has begun is too late to plan; an earlier one than before means the run was set back.
            step = newest if newest > step or newest < wanted else step
            pace.at(newest, time.monotonic())
            wanted = newest
        elif not idle:
            _answer(wire, planner, step, pace.budget() if settings.paced else None)
            step += 1


class Pace:
    """How long training takes a step, from when steps are asked for; a search takes a share of it."""

    def __init__(self) -> None:
        self._step, self._at = -1, 0.0
        self._seconds: deque[float] = deque(maxlen=8)

    def at(self, step: int, now: float) -> None:
        """A step is asked for; other messages repeat the one before."""
        if step == self._step + 1:
            self._seconds.append(now - self._at)
        if step != self._step:
            self._step, self._at = step, now

    def budget(self) -> float | None:
        """Seconds of a search that keeps up, None while nothing is known."""
        return SHARE * median(self._seconds) if len(self._seconds) > 1 else None


def _heed(message: list[Any], planner: Planner, wanted: int) -> int:
    """Take a message in; the step that the leader wants now."""
    if message[0] == "corrections" and len(message) == 2:
        planner.corrections = Corrections(FITS.decode(message[1]))
    elif message[0] == "wanted" and len(message) == 2:
        return int(message[1])
    else:
        raise ValueError(f"a message is {repr(message)[:80]}, expected corrections or the wanted step")
    return wanted


def _answer(wire: Wire, planner: Planner, step: int, budget: float | None) -> None:
    began = time.perf_counter()
    try:
        record = encode_plan(planner.plan(step, budget))
    except Exception as error:  # noqa: BLE001  # whatever a dataset raises is the leader's to tell, and planning goes on
        wire.send(["failed", step, f"{type(error).__name__}: {error}"], 60.0)
        return
    wire.send(["plan", step, time.perf_counter() - began, record], 60.0)


def lower_priority(niceness: int) -> None:
    """Let everybody else run first.

    Where the kernel groups processes by session, as desktops and many servers do, niceness weighs only inside the
    session, which is this process's own; the group's weight is set apart.
    """
    os.nice(niceness)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as group:
        group.write(str(niceness))


def die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, which may be gone without closing the connection."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    """Serve the leader at the other end of the inherited descriptor."""
    descriptor, parent = map(int, sys.argv[1:3])
    die_with(parent)
    wire, status = Wire(socket.socket(fileno=descriptor)), 0
    try:
        serve(wire)
    except WireError as error:
        print(f"planner {os.getpid()}: {error}", file=sys.stderr)  # noqa: T201  # standard error is the log file
    except BaseException:  # noqa: BLE001  # the process ends either way; its log says why
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    # At once: the leader hears of the connection's end and of the process's in the same moment.
    os._exit(status)


if __name__ == "__main__":
    main()
