"""What a step took, as a leader tells its planner: a typed message of a version and a bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.planner.codec import Codec, CodecError
from ds_dip.planner.record import StepPlan
from ds_dip.programs import strategies_of
from ds_dip.programs.program import Stage

VERSION = 1
#: Stages told of a step; the rest adds little to robust fits and costs the leader time.
MOST = 64


class MeasuredStage(Protocol):
    """When a stage ran, in seconds of any one clock."""

    @property
    def stage(self) -> Stage:
        """Which stage."""
        ...

    @property
    def start(self) -> float:
        """When it started."""
        ...

    @property
    def end(self) -> float:
        """When it ended."""
        ...


class MeasuredStep(Protocol):
    """What a step took: stages a rank, and seconds of the whole iteration."""

    @property
    def step(self) -> int:
        """Which training step."""
        ...

    @property
    def stages(self) -> Sequence[Sequence[MeasuredStage]]:
        """The stages of every rank."""
        ...

    @property
    def iteration(self) -> float:
        """Seconds of the whole step."""
        ...


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """How long a stage ran by its memory strategy."""

    stage: Stage
    seconds: float
    strategy: str = "none"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a step took: seconds of at most ``MOST`` of its stages, and of the whole ``iteration``.

    ``makespan`` is what its plan predicted for the stages. ``cost`` is what telling takes the leader, a step.
    """

    version: int
    step: int
    makespan: float
    iteration: float
    cost: float
    stages: tuple[StageSeconds, ...]


_CODEC: Codec[StepTimes] = Codec(StepTimes, "measured")


def step_times(plan: StepPlan, step: MeasuredStep, turn: int, cost: float) -> StepTimes:
    """Of a step that ran by this plan; stages evenly over all ranks and the whole step, others each ``turn``.

    A split backward counts as one, with what both of its parts took.
    """
    seconds = {item.stage: max(0.0, item.end - item.start) for rank in step.stages for item in rank}
    later = {replace(stage, kind="B"): own for stage, own in seconds.items() if stage.kind == "W"}
    ranks = [[item.stage for item in rank if item.stage.kind != "W"] for rank in step.stages]
    every = -(-sum(map(len, ranks)) // MOST) or 1
    strategies, place, chosen = strategies_of(plan.programs), turn % every, []
    for rank in ranks:
        for stage in rank[place::every]:
            own = stage.module, stage.chunk, stage.microbatch, stage.sub
            whole = seconds[stage] + later.get(stage, 0.0)
            chosen.append(StageSeconds(stage, whole, strategies.get(own, "none")))
        place = (place - len(rank)) % every
    return StepTimes(VERSION, step.step, plan.makespan, step.iteration, cost, tuple(chosen))


def encode_times(times: StepTimes) -> bytes:
    """As checked JSON."""
    return _CODEC.encode(times)


def decode_times(data: bytes) -> StepTimes:
    """Raises CodecError for another version, more stages than ``MOST``, unknown strategies, and times that are none."""
    times = _CODEC.decode(data)
    if times.version != VERSION:
        raise CodecError(f"measured.version is {times.version}, expected {VERSION}")
    if len(times.stages) > MOST:
        raise CodecError(f"measured.stages has {len(times.stages)} entries, expected at most {MOST}")
    numbers = (times.step, times.makespan, times.iteration, times.cost, *(item.seconds for item in times.stages))
    if odd := {item.strategy for item in times.stages} - {*STRATEGIES}:
        raise CodecError(f"measured names the memory strategy {min(odd)[:80]!r}, expected {', '.join(STRATEGIES)}")
    if any(number < 0 for number in numbers):
        raise CodecError("measured holds a negative number")
    return times
