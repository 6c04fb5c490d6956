"""``ds-dip/timeline`` 1: what one batch was planned to do and what it did, on one clock."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from ds_dip.costs.corrections import CorrectedCosts
from ds_dip.costs.rules import base_costs, with_rules
from ds_dip.files import FileError, read_json, step_files, step_path, write_json
from ds_dip.models.partition import Partition
from ds_dip.models.spec import ELEMENT_BYTES, Model
from ds_dip.planner.recording import SUFFIX as RECORDED
from ds_dip.planner.recording import Recording, TimedStep, folder_of
from ds_dip.planning import build_problem
from ds_dip.programs import Held, memory, strategies_of
from ds_dip.programs.program import Message, Stage
from ds_dip.reporting.bounds import bounds
from ds_dip.scheduling.problem import Problem

if TYPE_CHECKING:
    from ds_dip.planner.record import StepPlan

FORMAT, VERSION = "ds-dip/timeline", 1
SUFFIX = ".json"
#: How times of all ranks come onto one clock; goes into every file.
CLOCK = (
    "seconds from the batch's start; measured on monotonic clocks, on other machines than the first rank's set to its "
    "once when training started; the plan's first stage is put where the first measured stage began"
)
_STRICT = {"extra": "forbid", "strict": True, "allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class StageInterval:
    """A stage on its rank, in seconds from the batch's start; ``tokens`` are those it computes, where known."""

    __pydantic_config__ = _STRICT

    rank: int
    kind: str
    module: str
    chunk: int
    microbatch: int
    sub: int
    start_s: float
    end_s: float
    tokens: int | None = None

    @property
    def stage(self) -> Stage:
        """Which stage it is."""
        return Stage(self.kind, self.module, self.chunk, self.microbatch, self.sub)


@dataclass(frozen=True, slots=True)
class TransferInterval:
    """A message on the link ``(sender, receiver)``, the ``order``-th on it.

    It starts when its source stage has ended. Where the plan's delays are known it ends when it
    has arrived, else when its target stage starts. ``source`` and ``target`` are
    (kind, module, chunk, microbatch, sub).
    """

    __pydantic_config__ = _STRICT

    sender: int
    receiver: int
    order: int
    start_s: float
    end_s: float
    bytes: int
    source: tuple[str, str, int, int, int]
    target: tuple[str, str, int, int, int]


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Bytes of activations on a rank from ``at_s`` on."""

    __pydantic_config__ = _STRICT

    rank: int
    at_s: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Track:
    """Stages, transfers and memory of all ranks, planned or measured."""

    __pydantic_config__ = _STRICT

    stages: tuple[StageInterval, ...]
    transfers: tuple[TransferInterval, ...] = ()
    memory: tuple[MemorySample, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """One batch: ``kind`` is ``planned`` or ``fallback`` (with its ``reason``), ``schedule`` how the order was found.

    ``waited_s`` is the slowest rank's wait for its plan and ``iteration_s`` the whole batch, both
    measured, or None where nothing was. ``loading_s`` is each rank's wait for samples, between its stages;
    ``planned_iteration_s`` is what the plan predicted for the whole batch.
    """

    __pydantic_config__ = _STRICT

    step: int
    ranks: int
    kind: str
    reason: str
    schedule: str
    planned: Track
    measured: Track | None = None
    waited_s: float | None = None
    iteration_s: float | None = None
    planned_iteration_s: float | None = None
    loading_s: tuple[float, ...] | None = None
    clock: str = CLOCK


_ADAPTER = TypeAdapter(StepTimeline)


def step_timeline(
    plan: StepPlan,
    measured: TimedStep | None = None,
    problem: Problem | None = None,
    *,
    model: Model | None = None,
    partition: Partition | None = None,
    compute: str = "float32",
) -> StepTimeline:
    """The timeline of a step from its plan and, where it ran, its measurement.

    With the step's ``problem``, in which every stage has its strategy, the plan's transfers end when they arrive, and
    with ``model`` and ``partition`` too its memory is known.
    ``compute`` is the data type the run trains in.
    """
    real = None
    shift = 0.0
    if measured is not None:
        stages = tuple(
            _interval(rank, interval.stage, interval.start, interval.end, plan)
            for rank, intervals in enumerate(measured.stages)
            for interval in intervals
        )
        shift = min((stage.start_s for stage in stages), default=0.0)
        real = Track(stages, _transfers(plan, stages, {}, compute))
    planned = tuple(
        _interval(program.rank, time.stage, time.start + shift, time.end + shift, plan)
        for program, times in zip(plan.programs, plan.stages, strict=True)
        for time in times
    )
    delays = {} if problem is None else _delays(problem)
    samples: tuple[MemorySample, ...] = ()
    if problem is not None and model is not None and partition is not None:
        samples = _memory(memory(plan.programs, problem, (), plan.batch, model, partition, compute), plan, shift)
    return StepTimeline(
        step=plan.step,
        ranks=len(plan.programs),
        kind=plan.kind,
        reason=plan.reason,
        schedule=plan.schedule,
        planned=Track(planned, _transfers(plan, planned, delays, compute), samples),
        measured=real,
        waited_s=None if measured is None else measured.waited,
        iteration_s=None if measured is None else measured.iteration,
        planned_iteration_s=plan.iteration,
        loading_s=None if measured is None or not measured.loading else measured.loading,
    )


def write_timeline(run: str | Path, timeline: StepTimeline, keep: int | None = None) -> Path:
    """Write a step's timeline to ``RUN/timelines/step-NNNNNN.json`` and return where.

    Of more than ``keep`` timelines those of the earliest steps are removed.
    """
    path = step_path(Path(run, "timelines"), timeline.step, SUFFIX)
    write_json(path, {"format": FORMAT, "version": VERSION, **asdict(timeline)})
    if keep is not None:
        for old in list(step_files(path.parent, SUFFIX).values())[:-keep]:
            old.unlink(missing_ok=True)
    return path


def read_timeline(path: str | Path) -> StepTimeline:
    """Read a step's timeline; raises FileError, naming the field, where it is not one."""
    document = read_json(path, FORMAT, VERSION)
    content = {key: value for key, value in document.items() if key not in ("format", "version")}
    try:
        # In JSON's mode lists are tuples and integers are numbers; Python's strict mode has neither.
        timeline = _ADAPTER.validate_json(json.dumps(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        found = repr(first["input"])
        raise FileError(f"{path}: field {place!r} is {found[:60]}: {first['msg']}") from error
    for name, value, least, most in bounds(timeline):
        if not least <= value <= most:
            raise FileError(f"{path}: field {name!r} is {value}, expected {least:g} to {most:g}; take another timeline")
    return timeline


def timelines(run: str | Path) -> dict[int, Path]:
    """What a run left of its steps, by step, ascending: a timeline, or else the first pipeline's recording of it.

    Raises FileError where there is neither.
    """
    folder = Path(run, "timelines")
    found = {**step_files(folder_of(run, 0), RECORDED), **step_files(folder, SUFFIX)}
    if not found:
        raise FileError(
            f'{folder}: holds no step-*.json; name the folder of a run that was trained with "dip.trace.every" above 0 '
            'or recorded by "dip.record.every"'
        )
    return dict(sorted(found.items()))


def listed(steps: Sequence[int]) -> str:
    """Steps in words, short."""
    return ", ".join(map(str, steps)) if len(steps) <= 8 else f"{steps[0]} to {steps[-1]} ({len(steps)} of them)"


def timeline_of(run: str | Path, step: int) -> StepTimeline:
    """The timeline of one of the steps of ``timelines``; raises FileError for a file that is none."""
    path = timelines(run)[step]
    if not path.name.endswith(RECORDED):
        return read_timeline(path)
    recording = Recording(run)
    found = recording.read(step)
    settings = recording.run(found.run).settings
    model, partition, compute = settings.model, settings.partition, settings.rates.compute
    costs = with_rules(base_costs(model, settings.rates, settings.table, partition), model, settings.rules)
    chunks = {(chunk.module, chunk.start): chunk for chunk in partition.chunks}
    corrected = CorrectedCosts(costs, found.plan.corrections, chunks)
    chosen = strategies_of(found.plan.programs)
    problem = build_problem(found.plan.batch, model, partition, corrected, compute=compute, chosen=chosen)
    return step_timeline(found.plan, found, problem, model=model, partition=partition, compute=compute)


def _interval(rank: int, stage: Stage, start: float, end: float, plan: StepPlan) -> StageInterval:
    sizes = plan.batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
    identity = (stage.kind, stage.module, stage.chunk, stage.microbatch, stage.sub)
    return StageInterval(rank, *identity, float(start), float(end), sizes.dimension("tokens"))


def _transfers(
    plan: StepPlan,
    stages: Sequence[StageInterval],
    delays: Mapping[tuple[Stage, Stage], float],
    compute: str,
) -> tuple[TransferInterval, ...]:
    at = {interval.stage: interval for interval in stages}
    messages = {m.id: m for program in plan.programs for m in program.messages}
    transfers = []
    for message in sorted(messages.values(), key=lambda m: (m.sender, m.receiver, m.order)):
        source, target = at.get(message.source), at.get(message.target)
        if source is None or target is None:
            continue
        delay = delays.get((message.source, message.target))
        end = target.start_s if delay is None else source.end_s + delay
        transfers.append(
            TransferInterval(
                message.sender,
                message.receiver,
                message.order,
                source.end_s,
                max(source.end_s, end),
                message_bytes(message, compute),
                _name(message.source),
                _name(message.target),
            )
        )
    return tuple(transfers)


def message_bytes(message: Message, compute: str) -> int:
    """Bytes of what a message carries, where ``compute`` is the data type of the run."""
    return sum(
        math.prod(shape) * ELEMENT_BYTES[compute if dtype == "compute" else dtype] for shape, dtype in message.tensors
    )


def _name(stage: Stage) -> tuple[str, str, int, int, int]:
    return stage.kind, stage.module, stage.chunk, stage.microbatch, stage.sub


def _stages(problem: Problem) -> dict[int, Stage]:
    return {task.id: Stage(task.kind, task.module, task.chunk, task.microbatch, task.sub) for task in problem.tasks}


def _delays(problem: Problem) -> dict[tuple[Stage, Stage], float]:
    stage = _stages(problem)
    return {(stage[before], stage[after]): delay for before, after, delay in problem.edges}


def _memory(held: Sequence[Sequence[Held]], plan: StepPlan, shift: float) -> tuple[MemorySample, ...]:
    """The memory of the plan, at every moment the last of what is held then and the most of it."""
    samples: list[MemorySample] = []
    for rank, (moments, times) in enumerate(zip(held, plan.stages, strict=True)):
        for moment in moments:
            time = times[moment.stage]
            samples.append(MemorySample(rank, shift + (time.start if moment.start else time.end), moment.bytes))
    return tuple(samples)
