"""The leader's side of the planner's process: it never waits beyond a deadline, whatever that process does."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import IO, Any

from ds_dip.costs.corrections import Corrections
from ds_dip.planner.adopted import ADOPTED, Adopted
from ds_dip.planner.codec import CodecError
from ds_dip.planner.messages import Failed, Learned, Made, Message, Outdated, read_message
from ds_dip.planner.plan import Planner
from ds_dip.planner.process import end, start
from ds_dip.planner.record import PlanError, StepPlan
from ds_dip.planner.settings import PlannerSettings
from ds_dip.planner.times import StepTimes, encode_times
from ds_dip.planner.verification import Verifier
from ds_dip.planner.wire import CORRECTIONS, SETTINGS, GarbageError, Wire, WireError

#: Why a step has no plan: it came too late, its process is gone, is starting again, sent nonsense, or said why.
CAUSES = ("late", "dead", "starting", "refused", "failed")
#: Seconds before a restart: the first, doubled each time that no plan came in between, and the longest.
BACK_OFF = (0.1, 30.0)
#: Seconds that a process may say nothing at least until its first plan: it imports, opens the dataset, compiles.
START = 60.0
#: Seconds between two looks at a process that says nothing.
_LOOK = 0.25


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan and its record, or the cause (see ``CAUSES``) and a sentence why there is none."""

    plan: StepPlan | None = None
    record: bytes = b""
    cause: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Counts of a client since it started.

    ``plans`` came and were believed, ``dropped`` of them too late, ``reused`` taken over from an equal
    batch; ``hits`` are steps whose plan was there when it was asked for, ``misses`` steps without a
    plan by cause. ``plan_seconds`` and ``lead`` are medians of recent plans and steps: how long a
    plan took to make, and how many steps beyond the one asked for were planned already.
    """

    plans: int
    dropped: int
    reused: int
    hits: int
    misses: dict[str, int]
    refused: int
    restarts: int
    plan_seconds: float
    lead: float


class PlannerClient:
    """Starts, watches and restarts a planner; hands out its plans.

    ``log`` is a file for what the process writes (default: one without a name, of which a failure's reason tells
    the last line). ``command`` starts it, with a
    descriptor and this process's id appended. A process that owes a plan and says nothing for
    ``silent_s`` seconds is restarted; after ``restart_limit`` restarts it stays gone (None: no limit).
    ``nice`` is added to its niceness. Plans are checked by ``planner``, the leader's own (by default one that is made
    for the first plan). Use from one thread, and ``close`` it.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        *,
        first_step: int = 0,
        log: str | Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "ds_dip.planner"),
        silent_s: float = 60.0,
        restart_limit: int | None = None,
        nice: int = 10,
        planner: Planner | None = None,
    ) -> None:
        self.settings = settings
        self._planner = planner
        self._verifier = None if planner is None else Verifier(planner)
        # Here, so that settings that cannot be sent are refused at start.
        self._packed = SETTINGS.encode(settings)
        self._limit, self._nice = restart_limit, nice
        self._log, self._command, self._silent = log, tuple(command), silent_s
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._plans: dict[int, tuple[StepPlan, bytes]] = {}
        self._failed: dict[int, str] = {}
        self._corrections, self._adopted = Corrections(), Adopted()
        #: How often the process was told to begin anew: what it learned before does not count.
        self._generation = 0
        self._tracking = False
        #: The step that runs, and the first one that a process that starts now should plan.
        self._wanted = self._next = first_step
        #: Why nothing can be expected now: (cause, sentence), or None while the process works.
        self._down: tuple[str, str] | None = None
        #: The process works, has sent a plan, has let a deadline pass and said nothing since.
        self._ready = self._settled = self._stalled = False
        self._heard = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._wire: Wire | None = None
        self._misses: Counter[str] = Counter()
        self._count = self._dropped = self._reused = self._hits = self._refused = self._restarts = 0
        self._seconds: deque[float] = deque(maxlen=256)
        self._leads: deque[int] = deque(maxlen=256)
        # The kernel ends the planner with the thread that started it: this one lives until close().
        self._watcher = threading.Thread(target=self._watch, name="planner-client", daemon=True)
        self._watcher.start()

    @property
    def process_id(self) -> int | None:
        """The planner's process, None while there is none."""
        with self._changed:
            return None if self._process is None else self._process.pid

    def ready(self, deadline_s: float, plans: int = 0) -> bool:
        """Whether, within the deadline, the process works and ``plans`` of its plans wait to be taken."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ready and len(self._plans) >= plans, deadline_s)

    def peek(self, step: int, deadline_s: float) -> tuple[StepPlan, bytes] | None:
        """The plan of a step and its record if it comes within the deadline; it stays to be taken."""
        with self._changed:
            self._changed.wait_for(lambda: step in self._plans or self._closing.is_set(), deadline_s)
            return self._plans.get(step)

    def take(self, step: int, deadline_s: float) -> Answer:
        """The plan of a step, or why there is none, within the deadline.

        Returns at once when the process is gone. After a plan was late, later steps wait no more
        until the process gives a sign of life.
        """
        with self._changed:
            self._want(step)
            self._leads.append(max((known - step for known in self._plans), default=0))
            self._hits += step in self._plans
            self._changed.wait_for(
                lambda: step in self._plans or step in self._failed or self._down is not None,
                0.0 if self._stalled else deadline_s,
            )
            self._next = step + 1
            if step in self._plans:
                return Answer(*self._plans.pop(step))
            if step in self._failed:
                cause, reason = "failed", f"the planner could not plan step {step}: {self._failed[step]}"
            elif self._down is not None:
                cause, reason = self._down
            else:
                cause, reason = "late", f"the plan of step {step} was not there within {deadline_s:g} s"
                self._stalled = True
            self._misses[cause] += 1
            return Answer(cause=cause, reason=reason)

    @property
    def corrections(self) -> Corrections:
        """What the process has learned by now, or was told to begin from."""
        with self._changed:
            return self._corrections

    @property
    def tracking(self) -> bool:
        """Whether the process wants to be told of every step."""
        with self._changed:
            return self._tracking

    def measured(self, times: StepTimes) -> None:
        """Tell what a step took; steps that are not planned yet are planned with what follows from it."""
        message = ["measured", encode_times(times)]
        with self._changed:
            self._send(message)

    def correct(self, corrections: Corrections) -> None:
        """Have the process begin anew from these corrections, for steps that are not planned yet."""
        with self._changed:
            self._corrections, self._tracking = corrections, False
            self._generation += 1
            self._begin()

    def adopt(self, adopted: Adopted) -> None:
        """Have samples assigned by these costs, by a process that starts later too; other plans are dropped."""
        with self._changed:
            self._adopted = adopted
            if self._planner is not None:
                self._planner.batches.adopt(adopted)
            self._plans = {step: own for step, own in self._plans.items() if self._holds(own[0])}
            self._send(["adopted", ADOPTED.encode(adopted)])

    def _holds(self, plan: StepPlan) -> bool:
        return plan.batch.adopted == self._adopted.at(plan.step)

    def _begin(self) -> None:
        self._send(["corrections", CORRECTIONS.encode(self._corrections), self._generation])

    def statistics(self) -> ClientStatistics:
        """Counts so far."""
        with self._changed:
            return ClientStatistics(
                self._count,
                self._dropped,
                self._reused,
                self._hits,
                dict(self._misses),
                self._refused,
                self._restarts,
                median(self._seconds) if self._seconds else 0.0,
                median(self._leads) if self._leads else 0.0,
            )

    def close(self) -> None:
        """End the process and wait until it is gone; the second call does nothing."""
        with self._changed:
            self._closing.set()
            self._down, self._ready = ("dead", "the planner was closed"), False
            if self._process is not None:
                self._process.kill()
            self._changed.notify_all()
        self._watcher.join(10.0)
        if self._output is not None:
            self._output.close()

    def _want(self, step: int) -> None:
        # A step that was taken already is planned anew: the run was set back, and its plan is gone.
        again = step < self._next
        self._wanted = self._next = step
        # How long the process has owed something counts from now.
        self._heard = max(self._heard, time.monotonic()) if not self._owed() else self._heard
        self._plans = {known: plan for known, plan in self._plans.items() if known >= step}
        self._failed = {known: why for known, why in self._failed.items() if known >= step}
        self._send(["wanted", step, again])

    def _owed(self) -> bool:
        ahead = range(self._wanted, self._wanted + self.settings.ahead + 1)
        return any(step not in self._plans and step not in self._failed for step in ahead)

    def _send(self, message: list[Any]) -> None:
        if self._wire is not None:
            try:
                self._wire.send(message)
            except WireError:
                # Gone, or not reading: either way the watcher starts another.
                if self._process is not None:
                    self._process.kill()

    def _watch(self) -> None:
        """Start the process, listen until it is gone, and start it again: the watcher's whole life."""
        pause = BACK_OFF[0]
        while not self._closing.is_set():
            before = self._count
            cause, reason = "dead", ""
            try:
                self._start()
                while not self._closing.is_set():
                    self._listen()
            except (GarbageError, CodecError, PlanError) as error:
                cause, reason = "refused", f"the planner sent nonsense ({error})"
            except (WireError, OSError) as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001  # this thread must outlive anything, or nobody learns of it
                reason = f"{type(error).__name__}: {error}"
            ended = self._end(at_once=cause == "refused")
            if self._closing.is_set():
                return
            with self._changed:
                self._refused += cause == "refused"
                last = self._limit is not None and self._restarts >= self._limit
                self._ready = self._settled = False
                why = reason if cause == "refused" else f"the planner {ended} ({reason})"
                self._down = (cause, f"{why}; it was restarted {self._restarts} times, no more" if last else why)
                self._changed.notify_all()
            if last:
                return
            pause = BACK_OFF[0] if self._count > before else min(2 * pause, BACK_OFF[1])
            if self._closing.wait(pause):
                return
            with self._changed:
                self._restarts += 1

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # Kept apart from the trainer's output and beyond this block; its last line tells why a planner failed.
        log: IO[bytes] = tempfile.TemporaryFile() if self._log is None else open(self._log, "a+b")  # noqa: SIM115
        with self._changed:
            if self._output is not None:
                self._output.close()
            self._output = log
        with theirs:
            process = start(self._command, theirs, log)
        wire = Wire(ours)
        with self._changed:
            self._process, self._wire = process, wire
            if self._closing.is_set():
                process.kill()
            paths, adopted = list(filter(None, sys.path)), ADOPTED.encode(self._adopted)
            self._send(["settings", self._packed, self._next, paths, self._nice, adopted])
            self._begin()
            self._heard = time.monotonic()
            if self._down is not None and not self._closing.is_set():
                self._down = ("starting", f"the planner is starting again: {self._down[1]}")

    def _listen(self) -> None:
        """Take one message in, or find out that the process is gone or silent."""
        wire, process = self._wire, self._process
        assert wire is not None
        assert process is not None
        message = wire.receive(_LOOK)
        if message is None:
            if process.poll() is not None:
                raise WireError("its connection was left open")
            with self._changed:
                silence = time.monotonic() - self._heard
                patience = self._silent if self._settled else max(self._silent, START)
                if silence > patience and self._owed():
                    raise WireError(f"it owed a plan and said nothing for {silence:.0f} s")
            return
        said = read_message(message, self._verify)
        with self._changed:
            self._heard, self._stalled = time.monotonic(), False
            if not self._closing.is_set():
                self._down, self._ready = None, True
            self._take_in(said)
            self._changed.notify_all()

    def _verify(self, plan: StepPlan) -> None:
        if self._verifier is None:
            planner = Planner(self.settings)
            with self._changed:
                planner.batches.adopt(self._adopted)
                self._planner, self._verifier = planner, Verifier(planner)
        self._verifier.check(plan)

    def _take_in(self, said: Message) -> None:
        match said:
            case Made(plan, record, seconds, reused):
                self._count, self._reused, self._settled = self._count + 1, self._reused + reused, True
                self._seconds.append(seconds)
                if plan.step < self._wanted or not self._holds(plan):
                    self._dropped += 1
                else:
                    self._plans[plan.step] = plan, record
            case Outdated():
                self._dropped += 1
            case Failed(step, reason):
                self._failed[step] = reason
            case Learned(corrections, generation, tracking) if generation == self._generation:
                if not corrections.window:
                    corrections = replace(corrections, window=self._corrections.window)
                self._corrections, self._tracking = corrections, tracking

    def _end(self, *, at_once: bool) -> str:
        """Make sure that the process is gone; how it ended, in words. ``at_once``: it works, and is to be ended."""
        with self._changed:
            process, wire, self._process, self._wire = self._process, self._wire, None, None
        if wire is not None:
            wire.close()
        return "could not be started" if process is None else end(process, self._output, at_once=at_once)
