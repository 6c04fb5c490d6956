"""A process that has imported what every rank needs, and forks one for each job that it is given.

``python -m tests.distributed.forking`` reads jobs, a line of JSON each, and answers with the rank's process id and then
its exit status. Ranks of one job come from processes of their own, so that each has its own seed for hashes of strings:
what depends on the order of a set is different on every rank, as in any other job.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

#: What a rank imports sooner or later, the slow parts of it.
NEEDED = (
    "torch._dynamo", "torch.utils.tensorboard", "deepspeed.runtime.zero.muon.muon_optimizer",
    "ds_dip.runtime.initialize", "sklearn.datasets",
)  # fmt: skip


class Forker:
    """Such a process, and the rank that it has forked last."""

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.forking"],
            cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            bufsize=0,  # an answer that is read ahead is one that select() does not see
        )  # fmt: skip
        self._rank = 0
        self._code: int | None = 0

    def start(self, module: str, arguments: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
        """Ask for a rank that does what ``python -m module arguments…`` does, once the last one has ended."""
        assert self._code is not None, "a rank of the job before still runs"
        job = {"module": module, "arguments": arguments, "environment": environment, "log": str(log)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._code, self._rank = None, self._answer()

    def poll(self, seconds: float = 0.0) -> int | None:
        """The rank's exit status, negative for a signal; None while it runs."""
        if self._code is None and select.select([self._process.stdout], [], [], seconds)[0]:
            self._code = self._answer()
        return self._code

    def kill(self) -> None:
        """End the rank if it still runs."""
        if self.poll() is None:
            os.kill(self._rank, signal.SIGKILL)
            assert self.poll(10.0) is not None

    def close(self) -> None:
        """End both."""
        self._process.communicate(timeout=30.0)

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process that forks ranks ended with status {self._process.wait(10.0)}"
        return int(line)


def preload() -> None:
    """Have what every rank would import and load for itself in this process, before it is forked."""
    import deepspeed

    from ds_dip import balancing, scheduling

    for name in NEEDED:
        importlib.import_module(name)
    deepspeed.ops.op_builder.cpu.ShareMemCommBuilder().load()
    scheduling.warm()
    balancing.warm()
    # Ranks collect garbage several times each: not through all that is here.
    gc.collect()
    gc.freeze()


def become(job: dict[str, Any]) -> None:
    """Be a rank, in a forked process: its output is its log, its status what a script's would be."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(job["environment"])
    module = importlib.import_module(job["module"])
    sys.argv = [str(module.__file__), *job["arguments"]]
    module.main()
    # A second of every rank's end; what test_main_job launches and the ranks of ``failures`` end as a script does.
    gc.freeze()


def main() -> None:
    # Libraries print as they are loaded.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    preload()
    for line in sys.stdin:
        rank = os.fork()
        if not rank:
            answers.close()
            become(json.loads(line))
            sys.exit(0)
        print(rank, file=answers, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]), file=answers, flush=True)


if __name__ == "__main__":
    main()
