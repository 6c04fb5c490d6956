"""Batches whose plans are known before they run, made with a table's costs alone, in the real engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds_dip.costs.composed import TableCosts
from ds_dip.costs.corrections import Corrections
from ds_dip.data import DatasetReference, SampleMetadata
from ds_dip.models.partition import Partition
from ds_dip.planner import Planner, PlannerSettings, PlanSource, StepPlan
from ds_dip.planner.source import SourceStatistics
from ds_dip.planner.times import MeasuredStep


class Rounds:
    """A source that gives the same plans again and again, while the planner's process plans ahead as in training."""

    def __init__(self, inner: PlanSource, plans: Sequence[StepPlan]) -> None:
        self._inner, self._plans = inner, plans

    def next(self, step: int) -> StepPlan:
        """The next of the plans; the one that the planner has made for this step is not used."""
        self._inner.next(step)
        return self._plans[step % len(self._plans)]

    def evaluation(self, samples: Sequence[SampleMetadata]) -> StepPlan:
        """See PlanSource."""
        return self._inner.evaluation(samples)

    def measured(self, step: MeasuredStep) -> None:
        """Nothing: predictions here are the table's alone."""

    def resume(self, corrections: Corrections | None) -> None:
        """See PlanSource."""
        self._inner.resume(corrections)

    def statistics(self) -> SourceStatistics:
        """See PlanSource."""
        return self._inner.statistics()

    def close(self) -> None:
        """See PlanSource."""
        self._inner.close()


def plans_of(engine: Any, reference: DatasetReference, costs: TableCosts, first: int, batches: int) -> list[StepPlan]:
    """Plans of the batches from step ``first`` on, under the table's costs; the same on every rank."""
    partition: Partition = engine.module.partition
    planner = Planner(
        PlannerSettings(
            model=engine.module.model,
            partition=partition,
            dataset=reference,
            batch_size=engine.train_batch_size(),
            microbatches=engine.gradient_accumulation_steps(),
            seed=engine.dip.planner.seed,
            schedule=engine.dip.schedule,
            loss=engine.dip.loss,
            link_depth=engine.dip.link_depth,
            rates=costs.rates,
            table=costs.table,
            evaluations=engine.dip.planner.scored(),
            # Every rank makes the plans for itself, and all must find the same.
            paced=False,
        )
    )
    return [planner.plan(first + number) for number in range(batches)]
