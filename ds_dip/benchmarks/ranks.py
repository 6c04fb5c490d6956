"""Starts a benchmark's ranks as processes of this machine and collects what they measured. Imports no torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_dip.files import write_json

#: Seconds that ranks get to notice that another one has failed.
_NOTICE = 30.0


class BenchmarkError(RuntimeError):
    """Ranks that failed or took too long; the message has the end of the output of the first to blame."""


def run_ranks(module: str, ranks: int, settings: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Run ``python -m module SETTINGS RESULT`` as ``ranks`` processes; the JSON that rank 0 wrote with ``deliver``.

    SETTINGS is the settings as JSON. Raises BenchmarkError where a rank fails or ``seconds`` have passed; no process
    is left either way.
    """
    with tempfile.TemporaryDirectory() as folder:
        port, result = _free_port(), Path(folder, "result.json")
        environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_SIZE": str(ranks),
        }
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or ranks) // ranks)))
        logs = [Path(folder, f"rank-{rank}.log") for rank in range(ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, log in enumerate(logs):
                with log.open("wb") as stream:
                    processes.append(
                        subprocess.Popen(
                            [sys.executable, "-m", module, json.dumps(dict(settings)), str(result)],
                            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                            stdin=subprocess.DEVNULL,
                            stdout=stream,
                            stderr=subprocess.STDOUT,
                        )
                    )
            codes = _wait(processes, seconds)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for leftover in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):  # noqa: S108  # DeepSpeed's
                leftover.unlink(missing_ok=True)
        if any(codes) or not result.exists():
            rank = next((rank for rank, code in enumerate(codes) if code), 0)
            how = "did not end" if codes[rank] is None else f"ended with {codes[rank]}"
            output = logs[rank].read_text(errors="replace")[-3000:]
            raise BenchmarkError(f"rank {rank} of {module} {how} within {seconds:g} s; its output ends:\n{output}")
        document: dict[str, Any] = json.loads(result.read_text())
        return document


def deliver(document: Mapping[str, Any]) -> None:
    """Write what this rank measured where ``run_ranks`` reads it; rank 0 calls it."""
    write_json(sys.argv[2], document)


def settings() -> dict[str, Any]:
    """The settings that this rank was started with."""
    document: dict[str, Any] = json.loads(sys.argv[1])
    return document


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> list[int | None]:
    """Exit statuses, None of a rank that is still running."""
    end, failed = time.monotonic() + seconds, False
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return codes
        if any(codes) and not failed:
            end, failed = min(end, time.monotonic() + _NOTICE), True
        time.sleep(0.05)
    return [process.poll() for process in processes]
