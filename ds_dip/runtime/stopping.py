"""SIGTERM and SIGINT: a run stops after the step that is under way, every rank after the same one.

Schedulers and spot machines send SIGTERM some time before they kill, a terminal sends SIGINT. What a rank was sent
travels in the exchange that every step has anyway, so that asking costs nothing.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import psutil
from deepspeed.utils import logger
from typing_extensions import Self

from ds_dip.runtime.shutdown import remove_buffers

if TYPE_CHECKING:
    from ds_dip.runtime.engine import DIPEngine

SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Signals within so many seconds are one request: a launcher passes on what the terminal has sent to everybody.
REPEAT_S = 2.0
#: Seconds between two looks whether the launcher is still there.
_LOOK_S = 1.0
#: DeepSpeed's launcher is two processes; the outer one ends at a signal without telling the inner one.
_INNER = "deepspeed.launcher.launch"


class StopSignal:
    """While it is entered, a signal asks the engine to stop, and a second one ends the process at once.

    Enter it in the main thread, before the engine, and leave the loop where ``engine.stop_requested()`` says so:

        with ds_dip.StopSignal(engine) as stop, engine:
            for _ in range(steps):
                engine.train_batch()
                if engine.stop_requested():
                    engine.save_checkpoint(folder)
                    break
        sys.exit(stop.status)

    One signal to one rank is enough. That the ``deepspeed`` command is gone counts as SIGTERM. The second signal works
    even where this rank waits for others; it ends the process with status 128 and the signal's number.
    """

    def __init__(self, engine: DIPEngine, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self._engine, self._signals = engine, tuple(signals)
        self._previous: dict[signal.Signals, Any] = {}
        self._ours: socket.socket | None = None
        self._wakeup = -1
        self._first = 0.0
        self._thread: threading.Thread | None = None

    @property
    def status(self) -> int:
        """What the process should exit with: 0, or 128 and the number of the signal that all ranks stopped for."""
        number = self._engine.stop_requested()
        return 128 + number if number else 0

    def __enter__(self) -> Self:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._ours = ours
        self._previous = {number: signal.signal(number, _heard) for number in self._signals}
        # A handler in Python waits until the main thread is back from whatever it waits for; this does not.
        self._wakeup = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, args=(theirs,), name="ds_dip stop signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Signals do again what they did before; the second call does nothing."""
        if self._ours is None or self._thread is None:
            return
        signal.set_wakeup_fd(self._wakeup)
        for number, before in self._previous.items():
            signal.signal(number, before)
        self._ours.close()
        self._ours = None
        self._thread.join(_LOOK_S)

    def _watch(self, theirs: socket.socket) -> None:
        launcher = _launcher()
        with theirs:
            while True:
                if select.select([theirs], [], [], _LOOK_S)[0]:
                    numbers = theirs.recv(64)
                    if not numbers:
                        return
                    for number in numbers:
                        if number in self._signals:
                            self._take(signal.Signals(number))
                elif launcher is not None and _launcher() != launcher:
                    launcher = None
                    self._take(signal.SIGTERM, "the launcher is gone")

    def _take(self, number: signal.Signals, why: str = "") -> None:
        now = time.monotonic()
        if not self._first:
            self._first = now
            self._engine.ask_to_stop(number)
            logger.warning(
                f"rank {self._engine.global_rank}: {why or number.name}, the run stops after this step; "
                "a second signal ends it at once"
            )
        elif now - self._first > REPEAT_S:
            remove_buffers()
            os._exit(128 + number)


def _heard(_: int, __: FrameType | None) -> None:
    """The byte in the socket says it all."""


def _launcher() -> tuple[int, int] | None:
    """The ids of DeepSpeed's two launching processes, or None where another one started this rank."""
    with suppress(psutil.Error):
        parent = psutil.Process(os.getppid())
        if _INNER in parent.cmdline():
            return parent.pid, parent.ppid()
    return None
