"""Signals to launched runs: they save and stop, nothing is left behind, and the launcher is not kept waiting."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ds_dip.partition.checkpoint import read_manifest, resolve
from tests.distributed.ranks import PORT
from tests.distributed.test_main_job import TOOLS, Job, launch  # noqa: F401  # a fixture is found by its name

#: Seconds within which DeepSpeed's launcher kills what has not ended.
LAUNCHERS_PATIENCE = 30.0
STEPS = 2000
#: Runs that can be compared to the last bit.
SAME: dict[str, Any] = {"dip": {"deterministic": True}}


def processes(job: Job) -> list[psutil.Process]:
    """The launcher, its helpers, ranks and planner."""
    outer = psutil.Process(job.process.pid)
    return [outer, *outer.children(recursive=True)]


def ranks(job: Job) -> list[psutil.Process]:
    """The inner launcher's children."""
    return inner(job).children()


def started(launch: Any, **options: Any) -> tuple[Job, list[psutil.Process]]:  # noqa: F811
    """A run in the middle of its steps, and all its processes."""
    job = launch(STEPS, options.pop("launcher", ()), options.pop("folder", ""), **SAME)
    job.until(lambda: f"/{STEPS}  loss" in job.log.read_text())
    return job, processes(job)


def stopped_at(job: Job, everything: list[psutil.Process]) -> int:
    """Check that the run has saved and that nothing of it is left; the step."""
    _, alive = psutil.wait_procs(everything, timeout=LAUNCHERS_PATIENCE)
    assert not alive, [process.cmdline() for process in alive]
    assert not list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{PORT}_*"))
    saved = resolve(job.folder / "checkpoints", None)
    assert saved is not None, job.log.read_text()[-3000:]
    step = int(read_manifest(saved)["step"])
    summary = json.loads((job.folder / "run" / "summary.json").read_text())
    assert summary["steps"] == step < STEPS
    assert "the run stops after this step" in job.log.read_text()
    return step


def inner(job: Job) -> psutil.Process:
    """The launcher's second process, which the ranks are children of."""
    return next(p for p in processes(job) if "deepspeed.launcher.launch" in p.cmdline())


def test_the_deepspeed_command_alone_is_terminated(launch: Any) -> None:  # noqa: F811
    """It ends without a word to its helper, and the ranks find out."""
    job, everything = started(launch)
    job.process.send_signal(signal.SIGTERM)
    job.process.wait(10)
    stopped_at(job, everything)


SENT: dict[str, tuple[Callable[[Job], None], int]] = {
    "SIGTERM to the launcher that starts the ranks": (lambda job: inner(job).terminate(), 1),
    "SIGINT from the terminal": (lambda job: os.killpg(job.process.pid, signal.SIGINT), 0),
    "SIGTERM to one rank": (lambda job: ranks(job)[-1].terminate(), 143),
    "SIGTERM to everything": (lambda job: os.killpg(job.process.pid, signal.SIGTERM), 0),
}


@pytest.mark.nightly
@pytest.mark.parametrize("how", SENT)
def test_a_signal_saves_and_stops(launch: Any, how: str) -> None:  # noqa: F811
    job, everything = started(launch)
    send, status = SENT[how]
    send(job)
    job.end(LAUNCHERS_PATIENCE + 10.0)
    stopped_at(job, everything)
    assert not status or job.process.returncode == status


@pytest.mark.nightly
def test_torchrun_is_terminated_and_the_run_goes_on_from_there(launch: Any) -> None:  # noqa: F811
    torchrun = (str(TOOLS / "torchrun"), "--nproc_per_node", "2", "--master_port", str(PORT))
    job, everything = started(launch, launcher=torchrun)
    job.process.send_signal(signal.SIGTERM)
    job.end(LAUNCHERS_PATIENCE + 10.0)
    step = stopped_at(job, everything)
    losses = [json.loads((job.folder / "run" / "summary.json").read_text())["losses"]]
    again = launch(step + 3, torchrun, **SAME)
    assert again.end() == 0, again.log.read_text()[-3000:]
    losses.append(json.loads((job.folder / "run" / "summary.json").read_text())["losses"])
    whole = launch(step + 3, torchrun, "whole", **SAME)
    assert whole.end() == 0, whole.log.read_text()[-3000:]
    wanted = json.loads((whole.folder / "run" / "summary.json").read_text())["losses"]
    assert losses[0] + losses[1] == wanted
    assert not re.search("Traceback", again.log.read_text())


@pytest.mark.nightly
def test_two_launched_jobs_at_once_give_the_same(launch: Any) -> None:  # noqa: F811
    launchers = [(str(TOOLS / "deepspeed"), "--num_gpus", "2", "--master_port", str(PORT + n)) for n in (0, 1)]
    began = time.monotonic()
    jobs = [launch(20, launcher, f"job-{number}", **SAME) for number, launcher in enumerate(launchers)]
    for job in jobs:
        assert job.end() == 0, job.log.read_text()[-3000:]
    assert time.monotonic() - began < 240.0
    summaries = [json.loads((job.folder / "run" / "summary.json").read_text()) for job in jobs]
    assert summaries[0]["losses"] == summaries[1]["losses"]
    assert summaries[0]["accuracy"] == summaries[1]["accuracy"]
    for port in (PORT, PORT + 1):
        assert not list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"))
