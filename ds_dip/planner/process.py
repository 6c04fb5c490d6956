"""The planner's process as its leader sees it: started beside the trainer, and how it ended, in words."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import ds_dip

#: No accelerator and one thread: the planner must not take memory or cores from the trainer.
_ENVIRONMENT = {
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), ""),
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
}


def start(command: Sequence[str], connection: socket.socket, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start ``command``, with the connection's descriptor and this process's id appended; it writes to ``log``."""
    root = str(Path(ds_dip.__file__).parents[1])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [*command, str(connection.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(connection.fileno(),),
        env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": paths},
        # Ctrl-C is for the trainer; the planner goes when its leader does.
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes], log: IO[bytes] | None, *, at_once: bool) -> str:
    """Make sure that the process is gone; how it ended, in words. ``at_once``: it works, and is to be ended."""
    try:
        # A process that closed its end by dying needs a moment to say how.
        code = process.wait(0.0 if at_once else 1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "had to be stopped"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    last = "" if log is None else _last_line(log)
    return f"exited with status {code}" + (f" after writing {last!r}" if last else "")


def _last_line(log: IO[bytes]) -> str:
    """The last line that the process wrote: of a traceback, what was raised."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
    lines = log.read().decode(errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
