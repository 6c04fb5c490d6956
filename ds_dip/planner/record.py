"""A StepPlan: everything all ranks of a replica need for one step, as checked data with a hash of its content."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from ds_dip.costs.corrections import Corrections
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model, fields_of
from ds_dip.planner.codec import Codec, CodecError
from ds_dip.planning.batch import Batch
from ds_dip.planning.cut import sizes_of, uniform
from ds_dip.programs import ProgramTable, decode, encode
from ds_dip.programs.program import Backward, Forward, Load, Program, Stage, stages_of

FORMAT, VERSION = "ds-dip/step-plan", 1
KINDS = ("planned", "fallback")


class PlanError(ValueError):
    """A plan that must not be run; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """When a stage is predicted to run, in seconds from the start of the batch's first stage."""

    stage: Stage
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a replica does in one step.

    ``kind`` is ``planned`` or ``fallback``, with the ``reason`` for a fallback. ``schedule`` names
    how the order was found. ``programs`` and ``stages`` are one a rank, stages in running order.
    ``makespan`` is predicted for the stages, ``iteration`` for the whole step, and no schedule can
    be faster than ``lower_bound``: seconds. ``peak_memory`` are predicted bytes of activations a rank.
    ``corrections`` are those that the predictions were made with, without the measurements behind them.
    """

    step: int
    kind: str
    reason: str
    schedule: str
    batch: Batch
    programs: tuple[Program, ...]
    stages: tuple[tuple[StageTime, ...], ...]
    makespan: float
    iteration: float
    lower_bound: float
    peak_memory: tuple[float, ...]
    corrections: Corrections = field(default_factory=Corrections)
    hash: str = ""


@dataclass(frozen=True, slots=True)
class _Content:
    """A StepPlan as it is written."""

    step: int
    kind: str
    reason: str
    schedule: str
    batch: Batch
    times: tuple[tuple[tuple[float, float], ...], ...]
    makespan: float
    iteration: float
    lower_bound: float
    peak_memory: tuple[float, ...]
    corrections: Corrections
    programs: ProgramTable


_CODEC: Codec[_Content] = Codec(_Content, "plan")


def seal(plan: StepPlan) -> StepPlan:
    """The plan with the SHA-256 of its content."""
    return replace(plan, hash=hashlib.sha256(_content(plan)).hexdigest())


def encode_plan(plan: StepPlan) -> bytes:
    """A sealed plan as msgpack."""
    return bytes(msgpack.packb([FORMAT, VERSION, _content(plan), plan.hash]))


def decode_plan(record: bytes) -> StepPlan:
    """The plan of a record.

    Raises PlanError where the record is of another format, damaged, or holds a wrong value.
    """
    try:
        document = msgpack.unpackb(record)
    except ValueError as error:
        raise PlanError(f"the plan is not msgpack ({error})") from error
    if not isinstance(document, list) or len(document) != 4 or document[:2] != [FORMAT, VERSION]:
        raise PlanError(f"the plan is {repr(document)[:80]}, expected {FORMAT} {VERSION}")
    content, digest = document[2:]
    if not isinstance(content, bytes) or hashlib.sha256(content).hexdigest() != digest:
        raise PlanError("the plan's content does not have the hash it came with: it was damaged on its way")
    try:
        plain = _CODEC.decode(content)
        programs = decode(plain.programs)
    except ValueError as error:
        raise PlanError(f"the plan cannot be read: {error}") from error
    return _plan(plain, programs, str(digest))


def check_plan(plan: StepPlan, model: Model, partition: Partition, *, forward_only: bool | None = None) -> None:
    """Check a plan against what it is for: instances as the samples have them, every stage once on its rank.

    ``forward_only`` says whether there must be no backward; None believes the plan.
    Raises PlanError for the first thing that does not hold.
    """
    if len(plan.programs) != partition.ranks:
        raise PlanError(f"the plan has {len(plan.programs)} programs for {partition.ranks} ranks")
    limits = dict(partition.sub_microbatch)
    for number, microbatch in enumerate(plan.batch.microbatches):
        sizes = sizes_of(microbatch.samples, model)
        subs = {
            name: uniform(len(own), None if model.upstream(name) else limits.get(name)) for name, own in sizes.items()
        }
        if microbatch.sizes != sizes or microbatch.subs != subs:
            raise PlanError(f"microbatch {number} does not hold its samples' instances as the partition cuts them")
    if forward_only is None:
        forward_only = not any(stage.kind == "B" for program in plan.programs for stage in stages_of(program))
    reading = {
        (chunk.module, chunk.index)
        for chunk in partition.chunks
        if fields_of(model.module(chunk.module).layers[chunk.start : chunk.stop])
    }
    for program in plan.programs:
        wanted = Counter(
            Stage(kind, chunk.module, chunk.index, number, sub)
            for chunk in partition.on(program.rank)
            for number, microbatch in enumerate(plan.batch.microbatches)
            for sub in range(len(microbatch.subs[chunk.module]))
            for kind in ("F", "B")
            if kind == "F" or (model.backward(chunk.module) and not forward_only)
        )
        loads = Counter(i.stage for i in program.instructions if isinstance(i, Load))
        if loads != Counter({s: n for s, n in wanted.items() if s.kind == "F" and (s.module, s.chunk) in reading}):
            raise PlanError(f"rank {program.rank} does not load the fields of its chunks exactly once")
        found = Counter(stages_of(program))
        # Any backward may put weight gradients off: what it is the backward of is wanted, so this is too.
        wanted.update({s for s in found if s.kind == "W" and wanted[replace(s, kind="B")]})
        if wanted != found:
            odd = next(iter((wanted - found) + (found - wanted)))
            raise PlanError(f"rank {program.rank} does not run every stage of its chunks exactly once: see {odd}")
        _check_strategies(program)


def _check_strategies(program: Program) -> None:
    """A backward must know how its forward ran."""
    forwards: dict[tuple[str, int, int, int], str] = {}
    for instruction in program.instructions:
        if not isinstance(instruction, Forward | Backward):
            continue
        stage, strategy = instruction.stage, instruction.strategy
        key = stage.module, stage.chunk, stage.microbatch, stage.sub
        if strategy not in STRATEGIES:
            raise PlanError(
                f"rank {program.rank} runs {stage} by the memory strategy {strategy[:80]!r}, expected one of "
                f"{', '.join(STRATEGIES)}"
            )
        if isinstance(instruction, Forward):
            forwards[key] = strategy
        elif forwards.get(key) != strategy:
            raise PlanError(
                f"rank {program.rank} runs {stage} by the memory strategy {strategy!r}, and its forward by "
                f"{forwards.get(key)!r}"
            )


def _content(plan: StepPlan) -> bytes:
    times = tuple(tuple((time.start, time.end) for time in rank) for rank in plan.stages)
    plain = _Content(
        plan.step, plan.kind, plan.reason, plan.schedule, plan.batch, times,
        plan.makespan, plan.iteration, plan.lower_bound, plan.peak_memory, plan.corrections, encode(plan.programs),
    )  # fmt: skip
    return _CODEC.encode(plain)


def _plan(plain: _Content, programs: Sequence[Program], digest: str) -> StepPlan:
    if plain.kind not in KINDS:
        raise PlanError(f"the plan's kind is {plain.kind!r}, expected one of {', '.join(KINDS)}")
    if plain.step < 0 or plain.batch.step != plain.step or plain.batch.loss_count < 1:
        raise PlanError(
            f"the plan is for step {plain.step}, its batch for step {plain.batch.step} with a loss count of "
            f"{plain.batch.loss_count}: expected one step from 0 and a count of at least 1"
        )
    ranks = len(programs)
    if len(plain.times) != ranks or len(plain.peak_memory) != ranks:
        raise PlanError(f"the plan has times for {len(plain.times)} and memory for {len(plain.peak_memory)} ranks")
    numbers: list[Any] = [plain.makespan, plain.iteration, plain.lower_bound, *plain.peak_memory]
    if any(not math.isfinite(number) or number < 0 for number in numbers):
        raise PlanError("the plan predicts a negative time or memory")
    stages = []
    for program, times in zip(programs, plain.times, strict=True):
        own = stages_of(program)
        if len(own) != len(times) or any(start > end for start, end in times):
            raise PlanError(f"rank {program.rank} has {len(own)} stages and {len(times)} times, expected one each")
        stages.append(tuple(StageTime(stage, *time) for stage, time in zip(own, times, strict=True)))
    return StepPlan(
        plain.step, plain.kind, plain.reason, plain.schedule, plain.batch, tuple(programs), tuple(stages),
        plain.makespan, plain.iteration, plain.lower_bound, plain.peak_memory, plain.corrections, digest,
    )  # fmt: skip


__all__ = ["CodecError", "PlanError", "StageTime", "StepPlan", "check_plan", "decode_plan", "encode_plan", "seal"]
