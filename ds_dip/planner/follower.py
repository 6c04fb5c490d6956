"""Every rank of a pipeline but its leader: it runs what the leader publishes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ds_dip.costs.corrections import Corrections
from ds_dip.data import SampleMetadata
from ds_dip.planner.adopted import Adopted
from ds_dip.planner.ahead import ReadAhead
from ds_dip.planner.channel import Channel
from ds_dip.planner.record import StepPlan, check_plan, decode_plan
from ds_dip.planner.settings import PlannerSettings
from ds_dip.planner.source import REFUSAL, PlanSourceError, SourceStatistics, evaluation_name, step_name
from ds_dip.planner.times import MeasuredStep


class FollowerSource:
    """Reads what the leader publishes, within ``deadline_s``; the next step's record while this one runs."""

    def __init__(self, settings: PlannerSettings, channel: Channel, *, deadline_s: float = 120.0) -> None:
        self._settings, self._channel, self._deadline = settings, channel, deadline_s
        self._steps = self._planned = self._evaluations = self._resumed = 0
        self._waited = 0.0
        self._coming: Callable[[StepPlan], None] | None = None
        self._ahead = ReadAhead(channel, self._plan_ahead)

    def next(self, step: int) -> StepPlan:
        """The leader's plan of the step."""
        began = time.perf_counter()
        name = step_name(step, self._resumed)
        plan = self._ahead.take(name) or self._plan(self._channel.read(name, self._deadline))
        if plan.step != step:
            raise PlanSourceError(f"the leader published step {plan.step} as {name!r}")
        self._steps += 1
        self._planned += plan.kind == "planned"
        self._waited += time.perf_counter() - began
        self._ahead.look_for(step_name(step + 1, self._resumed))
        return plan

    def evaluation(self, samples: Sequence[SampleMetadata]) -> StepPlan:
        """The leader's plan for these samples; refused where the leader was given others."""
        number, self._evaluations = self._evaluations, self._evaluations + 1
        name = evaluation_name(number)
        plan = self._plan(self._channel.read(name, self._deadline))
        if plan.step != number:
            raise PlanSourceError(f"the leader published evaluation {plan.step} as {name!r}")
        known = {sample.id for sample in samples}
        if odd := [s.id for microbatch in plan.batch.microbatches for s in microbatch.samples if s.id not in known]:
            raise PlanSourceError(
                f"the leader evaluates sample {odd[0]!r}, which this rank was not given: "
                "give all ranks the same samples"
            )
        return plan

    def tell(self, coming: Callable[[StepPlan], None]) -> None:
        """See PlanSource; a plan is known once its record is read ahead."""
        self._coming = coming

    def measured(self, step: MeasuredStep) -> None:
        """Nothing: the leader has measured the same."""

    def resume(self, corrections: Corrections | None) -> None:
        """Read records of the continued run from now on."""
        self._resumed += 1
        self._ahead.look_for(None)

    def adopt(self, adopted: Adopted) -> None:
        """Nothing: the leader assigns."""

    def statistics(self) -> SourceStatistics:
        """Counts so far."""
        fallbacks = {"published": self._steps - self._planned} if self._steps > self._planned else {}
        return SourceStatistics(steps=self._steps, planned=self._planned, fallbacks=fallbacks, waited=self._waited)

    def close(self) -> None:
        """Look for no more records."""
        self._ahead.close()

    def _plan_ahead(self, record: bytes) -> StepPlan:
        plan = self._plan(record)
        if self._coming is not None:
            self._coming(plan)
        return plan

    def _plan(self, record: bytes) -> StepPlan:
        if record[:1] == REFUSAL:
            raise PlanSourceError(record[1:].decode(errors="replace"))
        plan = decode_plan(record[1:])
        check_plan(plan, self._settings.model, self._settings.partition)
        return plan
