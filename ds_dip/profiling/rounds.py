"""Batches whose plans are known before they run, made with a table's costs alone, in the real engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds_dip.costs.composed import TableCosts
from ds_dip.data import DatasetReference
from ds_dip.models.partition import Partition
from ds_dip.planner import Planner, PlannerSettings, PlanSource, StepPlan
from ds_dip.planner.source import PassedOn


class Rounds(PassedOn):
    """A source that gives the same plans again and again, while the planner's process plans ahead as in training."""

    def __init__(self, inner: PlanSource, plans: Sequence[StepPlan]) -> None:
        super().__init__(inner)
        self._plans = plans

    def next(self, step: int) -> StepPlan:
        """The next of the plans; the one that the planner has made for this step is not used."""
        self._inner.next(step)
        return self._plans[step % len(self._plans)]


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
