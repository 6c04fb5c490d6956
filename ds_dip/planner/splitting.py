"""A batch's backwards split in two where its plan is shorter for it."""

from __future__ import annotations

from ds_dip.costs.weights import WeightShares
from ds_dip.planner.ordering import SEARCHED, Ordering
from ds_dip.planner.settings import PlannerSettings
from ds_dip.planning.batch import Batch
from ds_dip.planning.split import split_search
from ds_dip.scheduling import Problem


class Splitter:
    """Tries to split the backwards of ordered batches, as the settings' ``split`` says; with None it never does.

    ``evaluations`` is the part of the settings' that is left for the search with whole backwards.
    """

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        searches = settings.schedule in SEARCHED and settings.evaluations > 1
        self._overhead = settings.split if searches else None
        self._shares = WeightShares(settings.model, settings.rates, settings.table)
        self._chunks = {(chunk.module, chunk.index): chunk for chunk in settings.partition.chunks}
        self.evaluations = settings.evaluations if self._overhead is None else (settings.evaluations + 1) // 2

    def time(self, budget: float | None) -> float | None:
        """The part of a budget in seconds that is left for the search with whole backwards."""
        return budget if budget is None or self._overhead is None else budget / 2

    def split(
        self, problem: Problem, batch: Batch, ordering: Ordering, budget: float | None
    ) -> tuple[Problem, Ordering]:
        """The problem and its order, or others with split backwards that are shorter, searched from that order."""
        if self._overhead is None:
            return problem, ordering
        settings, shares = self._settings, self.weights(problem, batch)
        found = split_search(
            problem,
            ordering.schedule,
            shares,
            self._overhead,
            settings.evaluations // 2,
            self.time(budget),
            settings.seed,
        )
        if found is None:
            return problem, ordering
        made, result = found
        assert result.schedule is not None
        assert result.timeline is not None
        return made, Ordering(ordering.name, result.schedule, result.timeline, result.lower_bound, ordering.whole)

    def weights(self, problem: Problem, batch: Batch) -> dict[int, float]:
        """By backward, the part of it that could be put off."""
        shares = {}
        for task in problem.tasks:
            if task.kind == "B":
                chunk = self._chunks[task.module, task.chunk]
                sizes = batch.microbatches[task.microbatch].sub_sizes(task.module, task.sub)
                shares[task.id] = self._shares.share(task.module, chunk.start, chunk.stop, sizes)
        return shares
