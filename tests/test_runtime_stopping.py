"""Signals become one request to stop, and a second one the end, whatever the main thread waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

from ds_dip.runtime import stopping
from ds_dip.runtime.stopping import StopSignal

PATIENCE = 60.0


class Engine:
    """What a StopSignal needs of an engine."""

    global_rank = 0

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.told = threading.Event()

    def ask_to_stop(self, reason: int) -> None:
        self.asked.append(reason)
        self.told.set()

    def stop_requested(self) -> int:
        return self.asked[-1] if self.asked else 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_asks_to_stop_and_sets_the_status(number: signal.Signals, status: int) -> None:
    engine: Any = Engine()
    before = [signal.getsignal(one) for one in stopping.SIGNALS]
    with StopSignal(engine) as stop:
        assert stop.status == 0
        os.kill(os.getpid(), number)
        assert engine.told.wait(PATIENCE)
        assert engine.asked == [number]
    assert stop.status == status
    assert [signal.getsignal(one) for one in stopping.SIGNALS] == before
    stop.close()


def test_signals_at_the_same_time_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "REPEAT_S", PATIENCE)
    engine: Any = Engine()
    with StopSignal(engine):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert engine.told.wait(PATIENCE)
    assert engine.asked == [signal.SIGINT]


def test_other_signals_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: found.append(number))
    engine: Any = Engine()
    try:
        with StopSignal(engine):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == [signal.SIGUSR1]
    assert engine.asked == []


def test_a_launcher_that_is_gone_asks_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([(7, 5), (7, 5)])
    monkeypatch.setattr(stopping, "_launcher", lambda: next(found, (7, 1)))
    monkeypatch.setattr(stopping, "_LOOK_S", 0.01)
    engine: Any = Engine()
    with StopSignal(engine):
        assert engine.told.wait(PATIENCE)
    assert engine.asked == [signal.SIGTERM]


def test_a_process_that_no_deepspeed_launcher_started_has_none() -> None:
    assert stopping._launcher() is None


def test_a_second_signal_ends_a_process_whose_main_thread_does_not_come_back() -> None:
    script = textwrap.dedent(f"""
        import ctypes, os
        from ds_dip.runtime import stopping
        from tests.test_runtime_stopping import Engine
        stopping.REPEAT_S = 0.1
        class Telling(Engine):
            def ask_to_stop(self, reason):
                os.write(1, b"asked\\n")
        with stopping.StopSignal(Telling()):
            os.write(1, b"waiting\\n")
            while True:
                ctypes.CDLL(None).sleep({int(PATIENCE)})
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert any(line == b"waiting\n" for line in process.stdout)
            process.terminate()
            assert any(line == b"asked\n" for line in process.stdout)
            # The second one must come later than what counts as the first: again and again until it has.
            while process.poll() is None:
                process.terminate()
                with_patience(process)
        finally:
            process.kill()
        assert process.wait(PATIENCE) == 143


def with_patience(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return
