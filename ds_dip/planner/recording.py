"""``ds-dip/recording`` 1: what a run was planned by, and of each recorded step its plan and what it took.

A file a step, JSON Lines in gzip, and one for the settings. A step's plan is the leader's record, byte for byte, so its
own hash holds it; gzip's checksum holds the rest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgpack

from ds_dip.files import FileError, first_line, parse_object, read_text, step_files, step_path, write_atomic
from ds_dip.planner import record
from ds_dip.planner.codec import Codec, CodecError
from ds_dip.planner.record import PlanError, StageTime, StepPlan, decode_plan, encode_plan
from ds_dip.planner.settings import PlannerSettings
from ds_dip.planner.times import MeasuredStep
from ds_dip.programs.program import stages_of

FORMAT, VERSION = "ds-dip/recording", 1
#: Where a run's folder has its recording, and what a step's file ends in.
FOLDER, SUFFIX = "recording", ".jsonl.gz"
#: Largest content of a file that is believed, and seconds that no batch takes.
_MOST_BYTES, _MOST_SECONDS = 256 * 2**20, 1e9
#: The fastest of gzip's levels makes plans about five times smaller; slower ones gain a tenth more.
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Run:
    """What a run's plans depend on: the planner's settings, costs and model included, and the dataset's length.

    ``versions`` are the libraries' that recorded it.
    """

    settings: PlannerSettings
    samples: int
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step: its plan, and when its stages ran, in seconds from the batch's start, in the plan's order on each rank.

    ``waited`` is the slowest rank's wait for the plan and ``iteration`` the whole batch; ``run`` names the settings.
    ``loading`` is each rank's wait for samples, empty where it was not measured.
    """

    plan: StepPlan
    stages: tuple[tuple[StageTime, ...], ...]
    waited: float
    iteration: float
    run: str
    loading: tuple[float, ...] = ()

    @property
    def step(self) -> int:
        """Which training step."""
        return self.plan.step


class TimedStep(MeasuredStep, Protocol):
    """What a step took, and how long its slowest rank waited for its plan: seconds."""

    @property
    def waited(self) -> float:
        """Seconds that the slowest rank waited for its plan."""
        ...

    @property
    def loading(self) -> tuple[float, ...]:
        """Seconds that each rank waited for samples; empty where that was not measured."""
        ...


@dataclass(frozen=True, slots=True)
class _Times:
    """What was measured, as it is written: start and end of every rank's stages."""

    waited: float
    iteration: float
    times: tuple[tuple[tuple[float, float], ...], ...]
    loading: tuple[float, ...] = ()


_RUN: Codec[Run] = Codec(Run, "run")
_TIMES: Codec[_Times] = Codec(_Times, "measured")


def folder_of(run: str | Path, replica: int) -> Path:
    """Where a run's folder has the recording of one of its pipelines."""
    return Path(run, FOLDER, f"replica-{replica}")


def write_run(folder: str | Path, run: Run) -> str:
    """Write the settings of a recording, where they are not there yet; the hash that names them.

    Raises CodecError for settings that could not be read back, OSError where they cannot be written.
    """
    content = _RUN.encode(run)
    digest = hashlib.sha256(content).hexdigest()
    path = _run_path(folder, digest)
    if not path.exists():
        write_atomic(path, b"%s\n%s\n" % (_head({}), content))
    return digest


def write_step(folder: str | Path, plan: StepPlan, measured: TimedStep, run: str) -> Path:
    """Write a step of the settings that ``run`` names, atomically, and return where; errors as for ``write_run``."""
    content, digest = msgpack.unpackb(encode_plan(plan))[2:]
    times = tuple(tuple((stage.start, stage.end) for stage in rank) for rank in measured.stages)
    timed = _TIMES.encode(_Times(measured.waited, measured.iteration, times, measured.loading))
    head = _head({"step": plan.step, "run": run, "plan_sha256": digest})
    path = step_path(folder, plan.step, SUFFIX)
    write_atomic(path, gzip.compress(b"\n".join((head, content, timed, b"")), _LEVEL, mtime=0))
    return path


def read_step(path: str | Path) -> RecordedStep:
    """Read a step; raises FileError, one sentence, for a file that is damaged, cut off, or something else."""
    head, content, timed = _lines(_unpacked(path), path, 3)
    known = _checked_head(head, path, {"step": int, "run": str, "plan_sha256": str})
    try:
        plan = decode_plan(msgpack.packb([record.FORMAT, record.VERSION, content, known["plan_sha256"]]))
        measured = _TIMES.decode(timed)
    except (PlanError, CodecError) as error:
        raise FileError(f"{path}: {error}; remove it, or record the run again") from error
    if plan.step != known["step"]:
        raise FileError(f"{path}: is of step {known['step']}, its plan of step {plan.step}; record the run again")
    stages = _stages(plan, measured, path)
    return RecordedStep(plan, stages, measured.waited, measured.iteration, known["run"], measured.loading)


class Recording:
    """The recording of one pipeline of a run, whose folder is ``run``.

    Raises FileError where there is none.
    """

    def __init__(self, run: str | Path, replica: int = 0) -> None:
        self.folder = folder_of(run, replica)
        #: The files of the recorded steps, ascending.
        self.steps = step_files(self.folder, SUFFIX)
        self._runs: dict[str, Run] = {}
        if not self.steps:
            raise FileError(
                f"{self.folder}: holds no step-*{SUFFIX}; name the folder of a run that was trained with "
                '"dip.record.every" above 0'
            )

    def read(self, step: int) -> RecordedStep:
        """A step of it; raises FileError where it was not recorded, or its file cannot be used."""
        if step not in self.steps:
            first, last = min(self.steps), max(self.steps)
            what = f"ends with step {last}" if step > last else f"begins with step {first}"
            if first < step < last:
                what = f"has {len(self.steps)} of the steps {first} to {last}"
            raise FileError(f"{self.folder}: holds no step {step}, the recording {what}")
        found = read_step(self.steps[step])
        if found.step != step:
            raise FileError(f"{self.steps[step]}: holds step {found.step}; give files their own names back")
        return found

    def run(self, digest: str) -> Run:
        """The settings that a step names; raises FileError where they are missing or damaged."""
        if digest not in self._runs:
            self._runs[digest] = self._read_run(digest)
        return self._runs[digest]

    def _read_run(self, digest: str) -> Run:
        path = _run_path(self.folder, digest)
        text = read_text(path, f"a {FORMAT} file", _MOST_BYTES)
        head, content = _lines(text.encode(), path, 2)
        _checked_head(head, path, {})
        if hashlib.sha256(content).hexdigest() != digest:
            raise FileError(f"{path}: does not have the hash that its steps name; it was damaged: record the run again")
        try:
            return _RUN.decode(content)
        except CodecError as error:
            raise FileError(f"{path}: {error}; read it with the version of ds_dip that recorded it") from error


def _run_path(folder: str | Path, digest: str) -> Path:
    return Path(folder, f"run-{digest[:12]}.jsonl")


def _head(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, "version": VERSION, **fields}).encode()


def _unpacked(path: str | Path) -> bytes:
    if Path(path).exists() and not Path(path).is_file():
        # A pipe, for one, would be waited for.
        raise FileError(f"{path}: is no file; give the folder of a recorded run")
    try:
        with open(path, "rb") as stream:
            packed = stream.read(_MOST_BYTES + 1)
        with gzip.open(io.BytesIO(packed)) as unpacked:
            data = unpacked.read(_MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(
            f"{path}: is no whole gzip file ({first_line(error)}): it was cut off or damaged; remove it, or record the "
            "run again"
        ) from error
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}); give the folder of a recorded run") from error
    if len(data) > _MOST_BYTES:
        raise FileError(f"{path}: holds more than {_MOST_BYTES} bytes, which no recorded step does")
    return data


def _lines(data: bytes, path: str | Path, count: int) -> Sequence[bytes]:
    # Counted before they are taken apart: a file that is something else may have a hundred million of them.
    whole = data.count(b"\n")
    lines = data.split(b"\n", count)
    if whole != count or lines[-1]:
        raise FileError(
            f"{path}: has {whole} whole lines, expected {count} of a {FORMAT} file; it was cut off, or is "
            "something else"
        )
    return lines[:-1]


def _checked_head(line: bytes, path: str | Path, fields: Mapping[str, type]) -> dict[str, Any]:
    document = parse_object(line.decode(errors="replace"), f"{path}, line 1", f"a {FORMAT} file")
    for name, wanted in (("format", FORMAT), ("version", VERSION)):
        if type(document.get(name)) is not type(wanted) or document[name] != wanted:
            raise FileError(f"{path}: field {name!r} is {repr(document.get(name))[:80]}, expected {wanted!r}")
    for name, kind in fields.items():
        if type(document.get(name)) is not kind:
            raise FileError(f"{path}: field {name!r} is {repr(document.get(name))[:80]}, expected {kind.__name__}")
    return document


def _stages(plan: StepPlan, measured: _Times, path: str | Path) -> tuple[tuple[StageTime, ...], ...]:
    own = [stages_of(program) for program in plan.programs]
    if [len(stages) for stages in own] != [len(times) for times in measured.times]:
        raise FileError(f"{path}: does not measure every stage of its plan once; record the run again")
    if len(measured.loading) not in (0, len(own)):
        raise FileError(
            f"{path}: tells of {len(measured.loading)} of {len(own)} ranks what they loaded; record it again"
        )
    numbers = (measured.waited, measured.iteration, *measured.loading)
    if not all(0.0 <= number <= _MOST_SECONDS for number in numbers) or not all(
        -_MOST_SECONDS <= start <= end <= _MOST_SECONDS for rank in measured.times for start, end in rank
    ):
        raise FileError(f"{path}: measures a time that no clock gives; record the run again")
    return tuple(
        tuple(StageTime(stage, *time) for stage, time in zip(stages, times, strict=True))
        for stages, times in zip(own, measured.times, strict=True)
    )
