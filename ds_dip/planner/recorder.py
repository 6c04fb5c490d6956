"""Records a run while it trains: a leader's plans and measured times, written by a thread beside the steps."""

from __future__ import annotations

import queue
import threading
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ds_dip.costs.machine import versions
from ds_dip.files import FileError, first_line, step_files, step_path
from ds_dip.planner.record import StepPlan
from ds_dip.planner.recording import SUFFIX, Run, TimedStep, folder_of, write_run, write_step
from ds_dip.planner.settings import PlannerSettings

#: Steps that may wait to be written.
BACKLOG = 64
#: Seconds that a step waits at most for a disk that is slower than training, and the end for what is not yet written.
PATIENCE_S, END_S = 5.0, 30.0


class Recorder:
    """Records every ``every``-th step of one pipeline and keeps the newest ``keep``.

    ``run`` is the folder in which recording/ is made, None until ``into`` tells it, and never the folder ``replayed``.
    ``warn`` is told, once each, what keeps steps from being recorded: training goes on without them. A step replaces
    all recorded ones from its number on, since those are of an earlier run, or of one that was set back. Use from one
    thread, and ``close`` it.
    """

    def __init__(
        self,
        replica: int,
        every: int,
        keep: int,
        run: str | Path | None,
        warn: Callable[[str], None],
        replayed: str | Path | None = None,
    ) -> None:
        self._replica, self._every, self._keep, self._warn = replica, every, keep, warn
        self._replayed = replayed
        self._run: Path | None = None
        self._settings: Run | None = None
        self._queue: queue.Queue[tuple[StepPlan, TimedStep, Run] | None] = queue.Queue(BACKLOG)
        self._thread: threading.Thread | None = None
        self._said: set[str] = set()
        self._stalled = False
        self._late = self._failed = 0
        if run is not None:
            self.into(run)

    @property
    def left_out(self) -> int:
        """Steps that should have been recorded and were not."""
        return self._late + self._failed

    def into(self, run: str | Path) -> None:
        """Record in a run's folder, unless one is known already.

        Raises FileError for the folder that is replayed, whose plans would be replaced before they are read.
        """
        if self._run is None:
            if self._replayed is not None and Path(run).resolve() == Path(self._replayed).resolve():
                raise FileError(
                    f'{run}: is the folder of "dip.replay", which recording would replace while it is read; give '
                    '"dip.record.directory", or another folder to the run'
                )
            self._run = Path(run)

    def begin(self, settings: PlannerSettings, samples: int) -> None:
        """From the next step on plans are made by these settings, over a dataset of so many samples."""
        self._settings = Run(settings, samples, versions())

    def add(self, plan: StepPlan, measured: TimedStep) -> None:
        """Have a step recorded; returns at once while the disk keeps up."""
        if plan.step % self._every or self._settings is None:
            return
        if self._run is None:
            self._tell(
                "folder",
                '"dip.record.every" is set and nothing is recorded, since no folder is known: give '
                '"dip.record.directory", or make a RunReport',
            )
            return
        if self._thread is None:
            try:
                writer = _Writer(folder_of(self._run, self._replica), self._keep)
            except OSError as error:
                self._failed += 1
                self._lost(plan.step, error.strerror or str(error), "record into another folder")
                return
            self._thread = threading.Thread(target=self._write, args=(writer,), name="ds_dip recorder", daemon=True)
            self._thread.start()
        try:
            # After a disk has been waited for in vain, steps wait no more until it has caught up.
            self._queue.put((plan, measured, self._settings), not self._stalled, PATIENCE_S)
            self._stalled = False
        except queue.Full:
            self._stalled = True
            self._late += 1
            self._lost(plan.step, f"its disk is {BACKLOG} steps behind", "record fewer steps, or on a faster one")

    def close(self) -> None:
        """Write what waits, within twice ``END_S``; the second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with suppress(queue.Full):
            self._queue.put(None, timeout=END_S)
        thread.join(END_S)
        if thread.is_alive():
            self._late += self._queue.qsize()
        if self.left_out:
            self._tell("end", f"{self.left_out} steps of the run were not recorded")

    def _write(self, writer: _Writer) -> None:
        while (item := self._queue.get()) is not None:
            try:
                writer.write(*item)
            except (OSError, ValueError) as error:
                self._failed += 1
                why = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
                self._lost(item[0].step, why, "make room there, or record into another folder")

    def _lost(self, step: int, why: str, remedy: str) -> None:
        self._tell(why, f"step {step} was not recorded: {why}; {remedy}. Training goes on")

    def _tell(self, what: str, sentence: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._warn(sentence)


class _Writer:
    """Writes steps into a folder, in the thread, and knows which are there."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._there = list(step_files(folder, SUFFIX))
        self._run: tuple[Run, str] | None = None

    def write(self, plan: StepPlan, measured: TimedStep, run: Run) -> None:
        """Write a step; those that it replaces and those beyond what is kept go."""
        later = bisect_left(self._there, plan.step)
        while len(self._there) > later:
            self._remove(self._there.pop())
        if self._run is None or self._run[0] is not run:
            self._run = run, write_run(self._folder, run)
        write_step(self._folder, plan, measured, self._run[1])
        self._there.append(plan.step)
        while len(self._there) > self._keep:
            self._remove(self._there.pop(0))

    def _remove(self, step: int) -> None:
        step_path(self._folder, step, SUFFIX).unlink(missing_ok=True)
