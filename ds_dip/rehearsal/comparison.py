"""An emulated batch against its simulation: by how much they differ, and through what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ds_dip.costs.model import CostModel
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model
from ds_dip.planner import StageTime, StepPlan
from ds_dip.planning import build_problem
from ds_dip.programs.compile import boundary
from ds_dip.programs.program import Message, Program, Stage
from ds_dip.reporting.order import Order
from ds_dip.reporting.timeline import CLOCK, StepTimeline, step_timeline
from ds_dip.runtime.clock import Interval
from ds_dip.runtime.measure import Measured

#: What is written wherever an emulation is shown.
MARK = "emulation"


@dataclass(frozen=True, slots=True)
class Compared:
    """One batch; seconds of the device that is emulated, bubbles as shares of ranks x span.

    ``predicted`` is the simulated makespan and ``measured`` the whole iteration. Their difference is the sum of
    ``plan`` (all of it, until the first stage starts; ``waited`` of it for the plan itself), ``stages`` (what the
    stages' real durations change of the simulated makespan), ``between`` (what is left until the last stage has ended:
    messages that are late, instructions between stages) and ``end`` (reduction and optimizer's step).
    ``peak_memory`` are predicted bytes of activations on the fullest rank.
    """

    step: int
    schedule: str
    kind: str
    reason: str
    stage_count: int
    predicted: float
    measured: float
    plan: float
    stages: float
    between: float
    end: float
    waited: float
    bubble_predicted: float
    bubble_measured: float
    peak_memory: float

    @property
    def difference(self) -> float:
        """By how much the emulation took longer than was simulated, as a share of the latter."""
        return self.measured / self.predicted - 1.0


def compare(
    plan: StepPlan, measured: Measured, twin: Model, partition: Partition, costs: CostModel, dilation: float
) -> Compared:
    """A batch that ran against its plan; ``costs`` are those that it was planned with."""
    intervals = [interval for rank in measured.stages for interval in rank]
    first, last = min(i.start for i in intervals), max(i.end for i in intervals)
    longer = _retimed(plan, {i.stage: i.end - i.start for i in intervals}, twin, partition, costs)
    work = sum(timed.end - timed.start for rank in plan.stages for timed in rank)
    parts = {
        "predicted": plan.makespan,
        "measured": measured.iteration,
        "plan": first,
        "stages": longer - plan.makespan,
        "between": last - first - longer,
        "end": measured.iteration - last,
        "waited": measured.waited,
    }
    return Compared(
        step=plan.step,
        schedule=plan.schedule,
        kind=plan.kind,
        reason=plan.reason,
        stage_count=len(intervals),
        bubble_predicted=1.0 - work / (len(plan.programs) * plan.makespan),
        bubble_measured=measured.bubble,
        peak_memory=max(plan.peak_memory),
        **{name: seconds / dilation for name, seconds in parts.items()},
    )


def _retimed(plan: StepPlan, seconds: dict[Stage, float], twin: Model, partition: Partition, costs: CostModel) -> float:
    """The makespan of the plan's order with stages of these durations, messages as planned."""
    problem = build_problem(plan.batch, twin, partition, costs)
    stages = {t.id: Stage(t.kind, t.module, t.chunk, t.microbatch, t.sub) for t in problem.tasks}
    ranks = {task.id: task.rank for task in problem.tasks}
    delays = {(stages[a], stages[b]): delay for a, b, delay in problem.edges if ranks[a] != ranks[b]}
    order = Order([[timed.stage for timed in rank] for rank in plan.stages], delays)
    return order.makespan(np.array([seconds[stage] for _, stage in order.places]))


def emulated_timeline(
    plan: StepPlan, measured: Measured, model: Model, partition: Partition, compute: str, dilation: float
) -> StepTimeline:
    """The batch's timeline in the device's seconds and bytes, marked as an emulation; ``model`` is the one emulated."""
    shrunk = replace(
        plan,
        programs=tuple(_programs(plan, model, partition)),
        stages=tuple(
            tuple(StageTime(t.stage, t.start / dilation, t.end / dilation) for t in rank) for rank in plan.stages
        ),
        iteration=plan.iteration / dilation,
    )
    seconds: dict[str, Any] = {name: getattr(measured, name) / dilation for name in ("waited", "executed", "iteration")}
    stages = tuple(
        tuple(Interval(i.stage, i.start / dilation, i.end / dilation) for i in rank) for rank in measured.stages
    )
    timeline = step_timeline(shrunk, replace(measured, stages=stages, **seconds), compute=compute)
    clock = f"{MARK}: ranks on one machine waited instead of computing, {dilation:g} times as long as written; {CLOCK}"
    return replace(timeline, schedule=f"{plan.schedule}, {MARK}", clock=clock)


def _programs(plan: StepPlan, model: Model, partition: Partition) -> list[Program]:
    """The programs with the messages' real shapes."""
    chunks = {(chunk.module, chunk.index): chunk for chunk in partition.chunks}

    def real(message: Message) -> Message:
        gradient = message.source.kind != "F"
        producer = message.target if gradient else message.source
        sizes = plan.batch.microbatches[producer.microbatch].sub_sizes(producer.module, producer.sub)
        specs = boundary(model, chunks[producer.module, producer.chunk])
        tensors = tuple((spec.shape(sizes), spec.dtype) for spec in specs if spec.differentiable or not gradient)
        return replace(message, tensors=tensors)

    return [replace(program, messages=tuple(map(real, program.messages))) for program in plan.programs]
