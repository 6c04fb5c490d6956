"""Turns an engine of a twin into an emulation: its stages and messages last as long as planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import deepspeed
import torch

import ds_dip
from ds_dip.costs.model import CostModel
from ds_dip.data import DatasetReference
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model
from ds_dip.planner import PlanSource, StepPlan
from ds_dip.planner.source import PassedOn
from ds_dip.programs.program import Message
from ds_dip.ranks import settings
from ds_dip.rehearsal.layers import emulated_factories, emulated_loss
from ds_dip.rehearsal.pace import EmulatedClock, wake_punctually
from ds_dip.rehearsal.transport import BlockingTransport, EmulatedTransport
from ds_dip.runtime.stages import Stages


def begun() -> dict[str, Any]:
    """Join the other ranks, on one thread, since a rank that waits needs no more; the settings it was started with."""
    deepspeed.init_distributed(dist_backend="gloo")
    torch.set_num_threads(1)
    return settings()


class PacedPlans(PassedOn):
    """An engine's plans, of which the clock is told how long each stage is to last.

    Nothing is corrected by what was measured: predictions stay those of the costs.
    """

    def __init__(self, inner: PlanSource, clock: EmulatedClock, rank: int) -> None:
        super().__init__(inner)
        self._clock, self._rank = clock, rank
        self.newest: StepPlan
        self._kept: Iterator[StepPlan] | None = None

    def next(self, step: int) -> StepPlan:
        """The plan of a training step, or the next of those to repeat."""
        plan = self._inner.next(step) if self._kept is None else next(self._kept)
        self.newest = plan
        self._clock.expect({timed.stage: timed.end - timed.start for timed in plan.stages[self._rank]})
        return plan

    def repeat(self, plans: Sequence[StepPlan]) -> None:
        """Give these plans from now on, in turn, again and again."""
        self._kept = cycle(plans)


class Delays:
    """Seconds that the messages of the newest of ``plans`` take, by the costs that it was planned with."""

    def __init__(self, twin: Model, partition: Partition, costs: CostModel, compute: str, plans: PacedPlans) -> None:
        self._stages, self._costs, self._compute, self._plans = Stages(twin, partition), costs, compute, plans

    def __call__(self, message: Message) -> float:
        """Of one message: the outputs of the producing chunk, or their gradients."""
        gradient = message.source.kind != "F"
        producer = message.target if gradient else message.source
        microbatch = self._plans.newest.batch.microbatches[producer.microbatch]
        sizes = microbatch.sub_sizes(producer.module, producer.sub)
        specs = self._stages.specs(producer)
        return self._costs.transfer(
            sum(spec.bytes(sizes, self._compute) for spec in specs if spec.differentiable or not gradient)
        )


@dataclass(frozen=True, slots=True)
class Emulation:
    """A DIPEngine of a twin, its plans, and the ``transports``, posted and blocking, that its messages may go by."""

    engine: Any
    plans: PacedPlans
    transports: Mapping[str, EmulatedTransport | BlockingTransport]

    def use(self, name: str) -> None:
        """Have the next batches' messages go by this transport."""
        self.engine._executor._transport = self.transports[name]


def emulate(
    twin: Model, partition: Partition, costs: CostModel, config: Mapping[str, Any], dataset: DatasetReference
) -> Emulation:
    """An engine of the twin whose stages and messages last as long as planned.

    ``costs`` are those that its planner plans with, by the configuration's cost rules.
    """
    wake_punctually()
    module = ds_dip.DIPModule(twin, partition, emulated_factories(twin, partition), emulated_loss)
    engine, *_ = ds_dip.initialize(model=module, training_data=dataset, config=config)
    clock = EmulatedClock()
    engine._executor._clock = clock
    plans = engine.plans = PacedPlans(engine.plans, clock, engine.stage_id)
    compute = str(engine.dtype_of("compute")).removeprefix("torch.")
    delays = Delays(twin, partition, costs, compute, plans)
    ends = engine._links, delays, engine.dtype_of
    emulation = Emulation(engine, plans, {"posted": EmulatedTransport(*ends), "blocking": BlockingTransport(*ends)})
    emulation.use("posted")
    return emulation
