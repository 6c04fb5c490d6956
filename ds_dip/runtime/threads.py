"""Priorities of a backend's threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


@contextmanager
def yielding(niceness: int) -> Iterator[None]:
    """Threads that start inside let this process's others run first; Linux has a niceness a thread, others have none.

    A link's gloo thread tries for a lock that the rank's own thread holds while it posts, without going to sleep.
    Where both share a core it can take the core from the very thread it waits for, for a whole time slice (3 to 4 ms).
    """
    before = _threads()
    yield
    for thread in _threads() - before:
        with suppress(OSError):  # it may have ended
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


def _threads() -> set[int]:
    return {int(task.name) for task in _TASKS.iterdir()} if _TASKS.is_dir() else set()
