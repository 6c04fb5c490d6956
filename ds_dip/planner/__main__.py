"""``python -m ds_dip.planner DESCRIPTOR PARENT``: the planner's own process, started by its leader's client.

It imports neither torch nor the user's script, runs at low priority, and ends when its leader does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import traceback

from ds_dip import balancing, scheduling
from ds_dip.planner.adopted import ADOPTED
from ds_dip.planner.plan import Planner
from ds_dip.planner.service import Service
from ds_dip.planner.wire import SETTINGS, Wire, WireError

_PR_SET_PDEATHSIG = 1


def serve(wire: Wire) -> None:
    """Plan ahead until the leader is gone.

    Raises WireError when it is, and ValueError for settings that mean nothing.
    """
    message = wire.receive(None)
    if message is None or message[0] != "settings" or len(message) != 6:
        raise ValueError(f"the first message is {repr(message)[:80]}, expected the settings")
    _, packed, first, paths, niceness, adopted = message
    lower_priority(niceness)
    sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
    settings = SETTINGS.decode(packed)
    service = Service(wire, Planner(settings), int(first))
    service.adopt(ADOPTED.decode(adopted))
    scheduling.warm()
    balancing.warm()
    # What was imported and opened stays: a full collection of it would make a plan late now and then.
    gc.collect()
    gc.freeze()
    wire.send(["ready"], 60.0)
    while True:
        service.turn()


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
