"""Starts the processes of a test group once: real ranks over gloo, killed when their time is up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: One port for all tests, since DeepSpeed leaves buffers named after it in /dev/shm; two suites at once need two.
PORT = int(os.environ.get("DS_DIP_TEST_PORT", "29617"))
#: DeepSpeed's compiled op, for this environment alone: two that share one would build it in turn.
EXTENSIONS = Path(os.environ.get("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix, "torch_extensions"))))


def run_ranks(module: str, world: int, *arguments: str, seconds: float = 300.0) -> list[list[dict[str, Any]]]:
    """Run ``python -m module`` as ``world`` ranks; what each wrote through ``report``, rank by rank.

    Raises AssertionError with the ranks' output where one fails or the time is up.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(PORT),
            "WORLD_SIZE": str(world),
            "LOCAL_SIZE": str(world),
            "REPORT_FOLDER": folder,
            "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
        }
        logs = [Path(folder, f"rank-{rank}.log") for rank in range(world)]
        processes = []
        for rank in range(world):
            with logs[rank].open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", module, *arguments],
                        cwd=ROOT,
                        env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        try:
            codes = _wait(processes, seconds)
        finally:
            for process in processes:
                process.kill()
                process.wait(10)
            remove_leftovers()
        if any(code != 0 for code in codes):
            texts = "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in logs)
            raise AssertionError(f"{module} ended with {codes} after at most {seconds:g} s\n{texts}")
        reports = [Path(folder, f"report-{rank}.jsonl") for rank in range(world)]
        return [
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [] for path in reports
        ]


def run_cases(module: str, folder: Path, cases: Sequence[str], seconds: float = 500.0) -> None:
    """Run ``python -m module folder cases…``, a process that forks the ranks of its cases itself."""
    environment = {
        **os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
    }  # fmt: skip
    try:
        subprocess.run(
            [sys.executable, "-m", module, str(folder), *cases], cwd=ROOT, env=environment, timeout=seconds, check=True
        )
    finally:
        remove_leftovers()


def _wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> list[int | None]:
    """Exit statuses, None of a rank that is still running: one that fails leaves the others 30 s to notice."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return codes
        if any(codes):
            end = min(end, time.monotonic() + 30.0)
        time.sleep(0.05)
    return [process.poll() for process in processes]


def remove_leftovers() -> None:
    """Remove what killed ranks leave: buffers of the port, and a lock that later runs would wait for."""
    for lock in EXTENSIONS.glob("*/lock"):
        lock.unlink(missing_ok=True)
    for leftover in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{PORT}_*"):
        leftover.unlink(missing_ok=True)


def report(**values: Any) -> None:
    """Write one line for the test that started this rank."""
    path = Path(os.environ["REPORT_FOLDER"], f"report-{os.environ['RANK']}.jsonl")
    with path.open("a") as stream:
        stream.write(json.dumps(values) + "\n")
