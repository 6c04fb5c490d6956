"""Threads that carry messages yield; a rank's own do not."""

from __future__ import annotations

import os
import threading

from ds_dip.runtime.threads import yielding


def niceness(thread: threading.Thread) -> int:
    assert thread.native_id is not None
    return os.getpriority(os.PRIO_PROCESS, thread.native_id)


def test_only_threads_that_start_inside_yield() -> None:
    end = threading.Event()
    before, inside, after = (threading.Thread(target=end.wait, args=(60,), daemon=True) for _ in range(3))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    before.start()
    with yielding(19):
        inside.start()
    after.start()
    try:
        assert niceness(inside) == 19
        assert (niceness(before), niceness(after)) == (own, own)
        assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
    finally:
        end.set()
