"""A step's order as a scheduling problem of its own, to time it again with other durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ds_dip.programs.program import Stage
from ds_dip.scheduling.problem import Problem, Task
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.timing import retime, retime_many


class Order:
    """Every rank's stages in running order, numbered along them, and the messages that join stages of two ranks.

    ``delays`` are the seconds of each message, by the stages that it joins. What joins stages of one rank its order
    implies already, and memory has no part in it.
    """

    def __init__(self, stages: Sequence[Sequence[Stage]], delays: Mapping[tuple[Stage, Stage], float]) -> None:
        self.places = [(rank, stage) for rank, of_rank in enumerate(stages) for stage in of_rank]
        number = {stage: place for place, (_, stage) in enumerate(self.places)}
        self.edges = tuple((number[source], number[target], delay) for (source, target), delay in delays.items())
        bounds = np.cumsum([0, *map(len, stages)]).tolist()
        self._schedule = Schedule(tuple(tuple(range(*own)) for own in pairwise(bounds)))

    def makespan(self, seconds: NDArray[np.float64]) -> float:
        """Of stages of these durations."""
        return retime(self._problem(seconds), self._schedule).makespan

    def makespans(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each column of durations [stages, columns]."""
        return retime_many(self._problem(seconds[:, 0]), self._schedule, seconds)

    def _problem(self, seconds: NDArray[np.float64]) -> Problem:
        tasks = tuple(
            Task(number, rank, stage.kind, stage.module, stage.chunk, 0, stage.microbatch, stage.sub, float(own))
            for number, ((rank, stage), own) in enumerate(zip(self.places, seconds, strict=True))
        )
        ranks = len(self._schedule.order)
        return Problem(ranks, (None,) * ranks, tasks, self.edges)
