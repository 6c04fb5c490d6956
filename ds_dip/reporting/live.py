"""``RUN/live.json`` (``ds-dip/live`` 1): where a run is while it goes, for ``ds-dip watch`` and other programs.

The file has one size whatever the run's length: figures of the newest steps alone are in it.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from pydantic import TypeAdapter, ValidationError

from ds_dip.files import FileError, read_json, write_atomic
from ds_dip.reporting.summary import StepRecord

if TYPE_CHECKING:
    from ds_dip.planner import SourceStatistics, StepPlan

FORMAT, VERSION = "ds-dip/live", 1
NAME = "live.json"
#: Newest steps whose figures are kept, characters of a sentence, and seconds from one writing to the next.
STEPS, SENTENCE, EVERY = 120, 500, 1.0
#: A run whose steps take a second is silent when nothing was written for so long; slower ones get so many steps.
SILENT_SECONDS, SILENT_STEPS = 60.0, 10
#: From when on a process that is not there is taken for gone.
DEAD_SECONDS, DEAD_STEPS = 5.0, 2
STATES = ("training", "ended", "stopped", "failed")
_STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class Fallback:
    """A step that ran without its plan, and why."""

    __pydantic_config__ = _STRICT

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of activations and messages of a rank in the newest step: predicted, counted, and at most allowed.

    None where the accelerator does not count, or where there is no limit.
    """

    __pydantic_config__ = _STRICT

    rank: int
    predicted_bytes: float
    measured_bytes: float | None = None
    limit_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Plans:
    """Counts and medians of the run's plans so far, as in its summary."""

    __pydantic_config__ = _STRICT

    planned: int = 0
    hits: int = 0
    reused: int = 0
    restarts: int = 0
    lead: float = 0.0
    plan_s: float = 0.0
    waited_s: float = 0.0
    fallbacks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Live:
    """A run: ``done`` of ``steps`` steps, in ``state`` when the file was written.

    ``started`` and ``updated`` are seconds since 1970, ``host`` and ``pid`` are of the rank that writes. ``recent`` are
    the newest steps whose loss is a number, oldest first. ``sentence`` says why a run failed, or which loss was none.
    """

    __pydantic_config__ = _STRICT

    state: str
    host: str
    pid: int
    started: float
    updated: float
    done: int
    steps: int
    recent: tuple[StepRecord, ...] = ()
    plans: Plans = field(default_factory=Plans)
    last_fallback: Fallback | None = None
    memory: tuple[RankMemory, ...] = ()
    sentence: str = ""


_ADAPTER = TypeAdapter(Live)


class LiveWriter:
    """Keeps a run's file up to date, at most once a second; ``warn`` is told once where it cannot be written."""

    def __init__(
        self, run: Path, steps: int, warn: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._warn, self._clock = run / NAME, warn, clock
        now = time.time()
        self._live = Live("training", socket.gethostname(), os.getpid(), now, now, 0, steps)
        self._recent: deque[StepRecord] = deque(maxlen=STEPS)
        self._written = -EVERY
        self._works = True

    def begin(self) -> None:
        """The run begins."""
        self._write()

    def step(self, record: StepRecord, plan: StepPlan, memory: Sequence[RankMemory]) -> bool:
        """Take in a step; whether it is time to write."""
        sentence = self._live.sentence
        if math.isfinite(record.loss):
            self._recent.append(record)
        else:  # JSON has no number for it
            sentence = f"step {record.step}: the loss is {record.loss}"
        fallback = self._live.last_fallback
        if plan.kind == "fallback":
            fallback = Fallback(plan.step, plan.reason[:SENTENCE])
        done = self._live.done + 1
        self._live = replace(self._live, done=done, last_fallback=fallback, memory=tuple(memory), sentence=sentence)
        return self._clock() - self._written >= EVERY

    def write(self, statistics: SourceStatistics, state: str = "training", sentence: str = "") -> None:
        """Write what is known; ``state`` is one of ``STATES``."""
        plans = Plans(
            planned=statistics.planned,
            hits=statistics.hits,
            reused=statistics.reused,
            restarts=statistics.restarts,
            lead=float(statistics.lead),
            plan_s=float(statistics.plan_seconds),
            waited_s=float(statistics.waited),
            fallbacks=dict(statistics.fallbacks),
        )
        said = sentence[:SENTENCE] or self._live.sentence
        self._live = replace(self._live, state=state, plans=plans, sentence=said)
        self._write()

    def _write(self) -> None:
        if not self._works:
            return
        self._written = self._clock()
        live = replace(self._live, updated=time.time(), recent=tuple(self._recent))
        try:
            document = {"format": FORMAT, "version": VERSION, **asdict(live)}
            write_atomic(self._path, json.dumps(document, allow_nan=False) + "\n", durable=False)
        except (OSError, ValueError) as error:
            self._works = False
            self._warn(f"{self._path}: is not written any more ({error}); training goes on")


def read_live(run: str | Path) -> Live:
    """What a run has written of itself; raises FileError, naming the field, where there is nothing right."""
    path = Path(run, NAME)
    if not path.exists():
        raise FileError(
            f"{path}: is not there; name the folder of a run that reports to it (launch/train.py, or a loop with "
            "ds_dip.reporting.run.RunReport)"
        )
    document = read_json(path, FORMAT, VERSION)
    content = {key: value for key, value in document.items() if key not in ("format", "version")}
    try:
        live = _ADAPTER.validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise FileError(f"{path}: field {place!r} is {repr(first['input'])[:60]}: {first['msg']}") from error
    if live.state not in STATES:
        raise FileError(f"{path}: field 'state' is {live.state!r}, expected one of {', '.join(STATES)}")
    return live


def condition(live: Live, now: float | None = None) -> str:
    """The run's state as seen from here and now: of ``STATES``, ``dead`` (its process is gone) or ``silent``."""
    if live.state != "training":
        return live.state
    slowest = max((record.seconds for record in live.recent), default=0.0)
    age = (time.time() if now is None else now) - live.updated
    # A container may have the host's name and other numbers for its processes: what still writes is not dead.
    here = live.host == socket.gethostname() and age > max(DEAD_SECONDS, DEAD_STEPS * slowest)
    if here and not _runs(live.pid, live.started):
        return "dead"
    return "silent" if live.done and age > max(SILENT_SECONDS, SILENT_STEPS * slowest) else "training"


def _runs(pid: int, started: float) -> bool:
    """Whether the process that wrote is still there, and no later one under its number."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= started + 1.0)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
