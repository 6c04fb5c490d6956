"""Starts ranks that are measured together on this machine, hears the first one, and leaves none behind. No torch."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: A line of rank 0's standard output that starts with this is a message: JSON.
MARK = "ds_dip-rank: "
#: Seconds that ranks get to notice that another one has failed.
_NOTICE = 20.0
#: How a trace ends in an error of ours: what it says is a sentence for whoever gave the settings.
_OURS = re.compile(r"^(?:\[rank\d+\]: )?ds_dip(?:\.\w+)+: (.+)$", re.MULTILINE)


class RanksError(RuntimeError):
    """Ranks that failed; the message is the sentence of an error of ours, or ends with what the first wrote last."""


class DeadlineError(RanksError):
    """Ranks of which none failed and that took too long; the message says how long they had."""


def run_ranks(
    module: str,
    ranks: int,
    threads: int | None,
    settings: Mapping[str, Any],
    seconds: float,
    heard: Callable[[dict[str, Any]], None],
    port: int = 0,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run ``python -m module SETTINGS`` as ``ranks`` processes; ``heard`` gets what rank 0 says by ``tell``.

    ``threads`` a rank are what OMP_NUM_THREADS says where it is None, or else this machine's cores shared.
    ``variables`` are added to their environment.

    Raises RanksError where a rank fails, DeadlineError where ``seconds`` have passed.
    No process is left, whatever happens.
    """
    port = port or _free_port()
    environment = (
        os.environ
        | dict(variables or {})
        | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_SIZE": str(ranks),
            "OMP_NUM_THREADS": str(threads or threads_of(ranks)),
        }
    )
    with tempfile.TemporaryDirectory() as folder, _ended_orderly():
        logs = [Path(folder, f"rank-{rank}.log") for rank in range(ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, log in enumerate(logs):
                with log.open("wb") as stream:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, "-m", module, json.dumps(dict(settings))],
                            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE if rank == 0 else stream,
                            stderr=stream,
                            # Ctrl-C is for this process, which ends them.
                            start_new_session=True,
                        )
                    )
            _follow(processes, seconds, heard, logs, module)
        finally:
            for process in processes:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
            for leftover in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):  # noqa: S108  # DeepSpeed's
                leftover.unlink(missing_ok=True)


def result_of(
    module: str,
    ranks: int,
    settings: Mapping[str, Any],
    seconds: float,
    heard: Callable[[dict[str, Any]], None] | None = None,
    threads: int | None = None,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The last message that rank 0 says; errors as for ``run_ranks``, and RanksError where it says none.

    ``heard`` gets every message, those of progress (``done`` of ``total``) too, which are no result.
    """
    said: list[dict[str, Any]] = []

    def hear(message: dict[str, Any]) -> None:
        if heard is not None:
            heard(message)
        if "done" not in message:
            said.append(message)

    run_ranks(module, ranks, threads, settings, seconds, hear, variables=variables)
    if not said:
        raise RanksError(f"rank 0 of {module} ended without a result")
    return said[-1]


def threads_of(ranks: int) -> int:
    """Threads of each of ``ranks`` ranks: OMP_NUM_THREADS where it is set, else this machine's cores shared."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else max(1, (os.cpu_count() or ranks) // ranks)


def tell(message: Mapping[str, Any]) -> None:
    """Say something to the process that started this rank."""
    sys.stdout.write("\n" + MARK + json.dumps(dict(message)) + "\n")
    sys.stdout.flush()


def settings() -> dict[str, Any]:
    """The settings that this rank was started with."""
    document: dict[str, Any] = json.loads(sys.argv[1])
    return document


@contextmanager
def _ended_orderly() -> Iterator[None]:
    """Let SIGTERM end this process as an exception does, so that what it has started is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _follow(
    processes: list[subprocess.Popen[bytes]],
    seconds: float,
    heard: Callable[[dict[str, Any]], None],
    logs: list[Path],
    module: str,
) -> None:
    output = processes[0].stdout
    assert output is not None
    os.set_blocking(output.fileno(), False)
    end, failed, rest = time.monotonic() + seconds, False, b""
    with selectors.DefaultSelector() as selector, logs[0].open("ab") as log:
        selector.register(output, selectors.EVENT_READ)
        while time.monotonic() < end:
            selector.select(0.1)
            data = output.read() or b""
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(MARK.encode()):
                    heard(json.loads(line[len(MARK) :]))
                else:
                    log.write(line + b"\n")
            codes = [process.poll() for process in processes]
            if None not in codes and not data:
                break
            if any(codes) and not failed:
                end, failed = min(end, time.monotonic() + _NOTICE), True
    codes = [process.poll() for process in processes]
    if any(code != 0 for code in codes):
        rank = next((rank for rank, code in enumerate(codes) if code), codes.index(None) if None in codes else 0)
        if codes[rank] is None:
            raise DeadlineError(f"rank {rank} of {module} did not end within {seconds:g} s; raise --deadline")
        last = logs[rank].read_text(errors="replace").strip()[-2000:]
        if told := _OURS.findall(last):
            raise RanksError(told[-1])
        raise RanksError(f"rank {rank} of {module} ended with {codes[rank]}; its output ends:\n{last}")
