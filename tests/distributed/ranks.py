"""Starts the processes of a test group once: real ranks over gloo, killed when their time is up."""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.distributed.forking import Forker

ROOT = Path(__file__).resolve().parents[2]
#: The port of all tests, since DeepSpeed leaves buffers named after it in /dev/shm, and those of jobs side by side;
#: two suites at once need others.
PORT = int(os.environ.get("DS_DIP_TEST_PORT", "29617"))
PORTS = range(PORT, PORT + 10)
#: DeepSpeed's compiled op, for this environment alone: two that share one would build it in turn.
EXTENSIONS = Path(os.environ.get("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix, "torch_extensions"))))


#: Where ranks come from, started when they are first needed.
_forkers: list[Forker] = []


def run_ranks(module: str, world: int, *arguments: str, seconds: float = 300.0) -> list[list[dict[str, Any]]]:
    """Run ``python -m module`` as ``world`` ranks; what each wrote through ``report``, rank by rank.

    Raises AssertionError with the ranks' output where one fails or the time is up.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **_environment(),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(PORT),
            "WORLD_SIZE": str(world),
            "LOCAL_SIZE": str(world),
            "REPORT_FOLDER": folder,
        }
        logs = [Path(folder, f"rank-{rank}.log") for rank in range(world)]
        forkers = _forkers_of(world)
        try:
            for rank, (forker, log) in enumerate(zip(forkers, logs, strict=True)):
                forker.start(module, arguments, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, log)
            codes = _wait(forkers, seconds)
        finally:
            for forker in forkers:
                forker.kill()
            remove_leftovers()
        if any(code != 0 for code in codes):
            texts = "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in logs)
            raise AssertionError(f"{module} ended with {codes} after at most {seconds:g} s\n{texts}")
        reports = [Path(folder, f"report-{rank}.jsonl") for rank in range(world)]
        return [
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [] for path in reports
        ]


def _environment() -> dict[str, str]:
    """Every rank's environment."""
    own = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(EXTENSIONS)}
    return {**os.environ, **own}


def _forkers_of(world: int) -> list[Forker]:
    """One for each rank."""
    while len(_forkers) < world:
        _forkers.append(Forker(ROOT, _environment()))
        atexit.register(_forkers[-1].close)
    return _forkers[:world]


def _wait(forkers: list[Forker], seconds: float) -> list[int | None]:
    """Exit statuses, None of a rank that is still running: one that fails leaves the others 30 s to notice."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        codes = [forker.poll() for forker in forkers]
        if None not in codes:
            return codes
        if any(codes):
            end = min(end, time.monotonic() + 30.0)
        time.sleep(0.05)
    return [forker.poll() for forker in forkers]


def remove_leftovers() -> None:
    """Remove what killed ranks leave, once no job runs: buffers, and a lock that later runs would wait for."""
    for lock in EXTENSIONS.glob("*/lock"):
        lock.unlink(missing_ok=True)
    for port in PORTS:
        remove_buffers(port)


def remove_buffers(port: int) -> None:
    """Remove the buffers of a job of which no rank is left."""
    for leftover in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
        leftover.unlink(missing_ok=True)


def report(**values: Any) -> None:
    """Write one line for the test that started this rank."""
    path = Path(os.environ["REPORT_FOLDER"], f"report-{os.environ['RANK']}.jsonl")
    with path.open("a") as stream:
        stream.write(json.dumps(values) + "\n")
