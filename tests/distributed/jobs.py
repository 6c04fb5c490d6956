"""Jobs whose ranks this process forks, so that a case takes no longer than what it is about."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import ds_dip
from ds_dip.partition.checkpoint import CheckpointError
from tests.distributed.ranks import PORT, PORTS, remove_buffers

#: Seconds after which a job is ended here, with what it has said; several times what one takes on an idle machine.
PATIENCE_S = 120.0
#: What a rank does, and with which argument.
Case = tuple[Callable[[Path, str], None], str]


def rank_of(case: Case, folder: Path, rank: int, world: int, port: int) -> NoReturn:
    """One rank of a case, in a forked process: its output is its log, its status what a script's would be."""
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_SIZE=str(world),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    run, argument = case
    try:
        run(folder, argument)
    except (*ds_dip.ERRORS, CheckpointError) as error:
        sys.exit(f"SENTENCE {error}")
    sys.exit(0)


class Job:
    """The ranks of a case, forked by this process."""

    def __init__(self, case: Case, folder: Path, world: int, port: int = PORT) -> None:
        folder.mkdir(exist_ok=True)
        sys.stdout.flush()
        self.port = port
        self._folder, self._world = folder, world
        self._running: dict[int, int] = {}
        self._stopped: set[int] = set()
        self._codes: list[int | None] = [None] * world
        self._ended: list[float | None] = [None] * world
        self._until = time.monotonic() + PATIENCE_S
        for rank in range(world):
            if not (pid := os.fork()):
                rank_of(case, folder, rank, world, port)
            self._running[pid] = rank

    def over(self) -> bool:
        """Look after the ranks: whether none is left that will end by itself, or in time."""
        for pid in list(self._running):
            found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if found and os.WIFSTOPPED(status):
                self._stopped.add(pid)
            elif found and os.WIFCONTINUED(status):
                self._stopped.discard(pid)
            elif found:
                rank = self._running.pop(pid)
                self._codes[rank], self._ended[rank] = os.waitstatus_to_exitcode(status), time.monotonic()
        return self._stopped >= self._running.keys() or time.monotonic() > self._until

    def waits(self) -> bool:
        """Whether a rank is gone or stopped, which the others find out by waiting."""
        return len(self._running) < self._world or bool(self._stopped)

    def end(self) -> dict[str, Any]:
        """Every rank's exit status (negative: the signal; None: it had to be ended here), when it ended, and log."""
        while not self.over():
            time.sleep(0.02)
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if any(code != 0 for code in self._codes):  # others remove theirs themselves
            remove_buffers(self.port)
        logs = [(self._folder / f"{rank}.log").read_text() for rank in range(self._world)]
        return {"codes": self._codes, "ended": self._ended, "logs": logs}


class Jobs:
    """Cases one after another, of which some set up while ranks of others wait: a JSON file each in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, Job] = {}

    def run(self, name: str, case: Case, world: int, *, whole: bool = False) -> None:
        """Start a case, and return when a rank of it is gone or stopped; with ``whole`` when it is over."""
        taken = {job.port for job in self._running.values()}
        port = next(port for port in PORTS if port not in taken)
        job = self._running[name] = Job(case, self._folder / name, world, port)
        while name in self._running and (whole or not job.waits()):
            self._look()

    def end(self) -> None:
        """Return when every case is over."""
        while self._running:
            self._look()

    def _look(self) -> None:
        time.sleep(0.02)
        for name, job in list(self._running.items()):
            if job.over():
                (self._folder / f"{name}.json").write_text(json.dumps(job.end()))
                del self._running[name]
