"""launch/train.py through the deepspeed launcher: it learns, survives its planner, refuses what it must."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.distributed.ranks import EXTENSIONS, PORT, PORTS, ROOT, remove_leftovers

MODEL = {
    "format": "ds-dip/model",
    "version": 1,
    "name": "tiny",
    "modules": [
        {
            "name": "vision", "kind": "image_encoder", "layers": 2, "hidden": 16, "heads": 2, "kv_heads": 2,
            "ffn": 32, "gated": False, "patch": 2, "channels": 1, "image": 8, "merge": 4,
        },
        {
            "name": "language", "kind": "language_model", "layers": 2, "hidden": 16, "heads": 2, "kv_heads": 1,
            "ffn": 32, "gated": True, "vocabulary": 128, "placeholders": {"vision": 4},
        },
    ],
    "edges": [["vision", "language"]],
}  # fmt: skip
CONFIG = {
    "train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "steps_per_print": 1000000,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "dip": {"laps": {"language": 2}, "sub_microbatch": {"vision": 2}, "timeouts": {"rank_s": 60.0}},
}


SCRIPT = "launch/train.py"
TOOLS = Path(sys.executable).parent


def deepspeed(port: int) -> tuple[str, ...]:
    """DeepSpeed's launcher of two ranks."""
    return (str(TOOLS / "deepspeed"), "--num_gpus", "2", "--master_port", str(port))


class Job:
    """A launched training of the tiny model on two ranks; ``launcher`` is what stands before the script."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        launcher: tuple[str, ...] = (),
        checkpoints: Path | None = None,
        **changes: Any,
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "model.json").write_text(json.dumps(MODEL))
        config = {**CONFIG, **changes, "dip": {**CONFIG["dip"], **changes.get("dip", {})}}
        (folder / "ds_config.json").write_text(json.dumps(config))
        self.log = folder / "log.txt"
        launcher = launcher or deepspeed(PORT)
        command = [
            *launcher, SCRIPT, "--deepspeed", "--deepspeed_config", str(folder / "ds_config.json"),
            "--model", str(folder / "model.json"), "--steps", str(steps), "--evaluate", "16",
            "--run-folder", str(folder / "run"), "--checkpoints", str(checkpoints or folder / "checkpoints"),
        ]  # fmt: skip
        environment = {
            **os.environ,
            "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
        }
        with self.log.open("wb") as log:
            # A group of its own, as a terminal gives one to every command.
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def planner(self) -> psutil.Process | None:
        """The planner's process, as an operator would find it."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if "ds_dip.planner" in process.cmdline():
                    return process
            except psutil.NoSuchProcess:
                continue
        return None

    def until(self, found: Any, seconds: float = 120.0) -> Any:
        """The first true answer of ``found``, asked again and again until the time is up."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if answer := found():
                return answer
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds:g} s\n{self.log.read_text()[-3000:]}")

    def end(self, seconds: float = 240.0) -> int:
        """Exit status; the log is shown where the job does not end in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running\n{self.log.read_text()[-3000:]}") from None

    def kill(self) -> None:
        """End whatever still runs."""
        if self.process.poll() is None:
            for process in (*psutil.Process(self.process.pid).children(recursive=True), self.process):
                process.kill()
            self.process.wait(10)
        with suppress(ProcessLookupError):  # what a launcher that is gone has left behind
            os.killpg(self.process.pid, signal.SIGKILL)


def orphans() -> list[int]:
    """Planners whose leader, the last of their arguments, is gone."""
    commands = {p.pid: p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])}
    return [pid for pid, line in commands.items() if "ds_dip.planner" in line and not psutil.pid_exists(int(line[-1]))]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def start(
        steps: int, launcher: tuple[str, ...] = (), folder: str = "", checkpoints: Path | None = None, **changes: Any
    ) -> Job:
        jobs.append(Job(tmp_path / folder, steps, launcher, checkpoints, **changes))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
    remove_leftovers()


def test_a_planner_killed_in_the_middle_costs_fallbacks_and_nothing_else(launch: Any) -> None:
    steps = 300
    job = launch(steps)
    planner = job.until(job.planner)
    job.until(lambda: f"/{steps}  loss" in job.log.read_text())
    planner.send_signal(signal.SIGKILL)
    again = job.until(lambda: (found := job.planner()) and found.pid != planner.pid and found)
    assert job.end() == 0, job.log.read_text()[-3000:]
    assert not again.is_running()
    summary = json.loads((job.folder / "run" / "summary.json").read_text())
    assert summary["steps"] == steps
    assert summary["planner_restarts"] == 1
    assert sum(summary["fallbacks"].values()) >= 1
    assert summary["plans"] + sum(summary["fallbacks"].values()) == steps
    assert summary["plans"] > steps // 4
    assert any("SIGKILL" in reason for reason in summary["newest_reasons"]), summary["newest_reasons"]
    assert summary["last_loss"] < 0.6 * summary["first_loss"]
    assert 0.0 <= summary["accuracy"] <= 1.0
    assert list((job.folder / "run" / "timelines").glob("step-*.json"))


#: Settings and what is said of them.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown-key": ({"dip": {"schedul": "dip"}}, '"dip.schedul" is unknown; did you mean "schedule"?'),
    "zero-3": ({"zero_optimization": {"stage": 3}}, '"zero_optimization.stage" is 3'),
    "too-many-laps": ({"dip": {"laps": {"language": 9}}}, "language"),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """All at once: launchers keep one core busy, one after the other."""
    folder = tmp_path_factory.mktemp("refused")
    jobs = {
        name: Job(folder / name, 4, deepspeed(PORTS[number]), **changes)
        for number, (name, (changes, _)) in enumerate(REFUSED.items())
    }
    yield jobs
    for job in jobs.values():
        job.kill()
    remove_leftovers()


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_cannot_be_are_refused_on_every_rank(refused: dict[str, Job], name: str) -> None:
    job, (_, sentence) = refused[name], REFUSED[name]
    assert job.end() != 0
    lines = [line for line in job.log.read_text().splitlines() if line.startswith("launch/train.py: ")]
    # The launcher ends the other ranks as soon as one is gone, at times before they have said the same.
    assert len(lines) in (1, 2), job.log.read_text()[-3000:]
    assert all(sentence in line for line in lines), lines


def test_it_runs_under_torchrun(launch: Any) -> None:
    job = launch(3, (str(TOOLS / "torchrun"), "--nproc_per_node", "2", "--master_port", str(PORT)))
    assert job.end() == 0, job.log.read_text()[-3000:]
    assert json.loads((job.folder / "run" / "summary.json").read_text())["steps"] == 3


@pytest.mark.nightly
def test_two_hosts_of_a_hostfile_train_together(launch: Any, tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("localhost slots=1\n127.0.0.1 slots=1\n")
    nodes = [
        launch(
            3,
            (
                str(TOOLS / "deepspeed"), "--hostfile", str(hostfile), "--no_ssh", "--node_rank", str(node),
                "--master_addr", "127.0.0.1", "--master_port", str(PORT),
            ),
            folder=f"node-{node}",
            checkpoints=tmp_path / "checkpoints",  # of a file system that both see
        )
        for node in range(2)
    ]  # fmt: skip
    for node in nodes:
        assert node.end() == 0, node.log.read_text()[-3000:]
    assert json.loads((nodes[0].folder / "run" / "summary.json").read_text())["steps"] == 3


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_twenty_launches_in_a_row_end_with_status_0_and_leave_nothing(launch: Any) -> None:
    for _ in range(20):
        job = launch(3)
        assert job.end() == 0, job.log.read_text()[-3000:]
        assert not orphans()
        assert not list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{PORT}_*"))
