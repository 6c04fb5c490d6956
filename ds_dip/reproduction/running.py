"""Runs parts that are not there yet: in this process, or in several, which changes nothing of what is found."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ds_dip.files import FileError
from ds_dip.reproduction.cases import Effort
from ds_dip.reproduction.experiment import Part, Result, Settings
from ds_dip.reproduction.store import digest, read_part, write_part

#: Seconds without a word from any process after which a run is given up; steps take at most minutes.
PATIENCE = 1800.0
#: Seconds that a process has to end.
_ENDING = 5.0


class ProcessError(RuntimeError):
    """A process that runs parts is gone or silent; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Event:
    """A part has begun a step (``what`` it is), or is done; ``found`` where its file was there."""

    part: Part
    what: str = ""
    done: bool = False
    found: bool = False


Watch = Callable[[Event], None]


def run_parts(settings: Settings, parts: Sequence[Part], folder: Path, jobs: int, watch: Watch) -> dict[str, Result]:
    """What every part found, by key in the given order: of its file in ``folder``, or else run, and its file written.

    Raises FileError for a description that cannot be used, ProcessError where a process ends without a word.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hashed = digest(settings)
    left = []
    for part in parts:
        if read_part(folder, part.key, hashed) is None:
            left.append(part)
        else:
            watch(Event(part, done=True, found=True))
    # The longest first, so that no process is left alone with a long one at the end.
    left.sort(key=lambda part: -part.cost)
    if jobs == 1 or len(left) < 2:
        for part in left:
            run_part(settings, part, folder, hashed, watch)
            watch(Event(part, done=True))
    else:
        _Processes(settings, folder, watch).run(left, min(jobs, len(left)))
    results = {part.key: read_part(folder, part.key, hashed) for part in parts}
    if lost := [key for key, result in results.items() if result is None]:
        raise FileError(f"{folder}: {', '.join(lost)} was changed while others were run; run the command again")
    return {key: result for key, result in results.items() if result is not None}


def run_part(settings: Settings, part: Part, folder: Path, hashed: str, watch: Watch) -> None:
    """Run one part here, and write its file."""
    write_part(folder, part.key, hashed, part.run(settings, lambda what: watch(Event(part, what))))


class _Processes:
    """Processes of ``python -m ds_dip.reproduction``, each of which runs one part after another."""

    def __init__(self, settings: Settings, folder: Path, watch: Watch) -> None:
        self._settings, self._folder, self._watch = settings, folder, watch
        self._heard: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._running: list[subprocess.Popen[str]] = []

    def run(self, parts: Sequence[Part], jobs: int) -> None:
        """Run all, ``jobs`` at once."""
        left, current = list(parts), {}
        try:
            for number in range(jobs):
                self._start(number)
                current[number] = self._give(number, left.pop(0))
            while current:
                try:
                    number, message = self._heard.get(timeout=PATIENCE)
                except queue.Empty:
                    raise ProcessError(
                        f"no process has told anything for {PATIENCE:g} s; the same command goes on with the parts "
                        f"that are not in {self._folder}"
                    ) from None
                if number not in current:
                    continue
                part = current[number]
                if message is None:
                    raise ProcessError(
                        f"the process of {part.title} {self._end(number)}; the same command goes on with the parts "
                        f"that are not in {self._folder}"
                    )
                if "failed" in message:
                    raise FileError(message["failed"])
                if "step" in message:
                    self._watch(Event(part, message["step"]))
                    continue
                self._watch(Event(part, done=True))
                if left:
                    current[number] = self._give(number, left.pop(0))
                else:
                    del current[number]
        finally:
            self._stop()

    def _start(self, number: int) -> None:
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        process = subprocess.Popen(
            [sys.executable, "-m", "ds_dip.reproduction"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            # A Ctrl-C is for this process alone, which then ends the others.
            start_new_session=True,
        )
        self._running.append(process)
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._heard.put((number, json.loads(line)))
        self._heard.put((number, None))

    def _give(self, number: int, part: Part) -> Part:
        stream = self._running[number].stdin
        assert stream is not None
        # A process that has ended is heard of by its output's end.
        with suppress(BrokenPipeError):
            stream.write(json.dumps(order(self._settings, part, self._folder)) + "\n")
            stream.flush()
        return part

    def _end(self, number: int) -> str:
        """How a process whose output has ended has ended itself."""
        try:
            status = self._running[number].wait(_ENDING)
        except subprocess.TimeoutExpired:
            return "closed its output"
        if status < 0:
            lacking = ", as where memory runs out" if -status == signal.SIGKILL else ""
            return f"was ended by signal {-status}{lacking}"
        return f"ended with status {status}, and what it wrote above says why"

    def _stop(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(_ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_ENDING)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()


def order(settings: Settings, part: Part, folder: Path) -> dict[str, Any]:
    """What a process is told of a part that it is to run."""
    own = asdict(settings) | {"models": str(settings.models), "devices": str(settings.devices)}
    return {"key": part.key, "folder": str(folder), "settings": own}


def ordered(document: Mapping[str, Any]) -> tuple[str, Path, Settings]:
    """(key, folder, settings) of an ``order``."""
    own = dict(document["settings"])
    own |= {"models": Path(own["models"]), "devices": Path(own["devices"]), "effort": Effort(**own["effort"])}
    return document["key"], Path(document["folder"]), Settings(**own)
