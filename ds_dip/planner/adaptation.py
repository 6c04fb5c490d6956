"""Corrections that follow what steps really take, and whether following closely pays (DFLOP, adaptive correction).

Lines per module and kind are fitted from the first steps and then from every fourth one. Which ranks
and shapes deviate from the lines is followed as closely as steps are told of. The leader tells of
every step as long as knowing the deviations makes orders better by more seconds a step than the
telling takes; otherwise of every fourth one, which is what the lines need anyway.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean

from ds_dip.costs.corrections import ITERATION, Corrections, Measurement
from ds_dip.costs.deviations import Deviations
from ds_dip.planner.plan import Planner
from ds_dip.planner.times import StepTimes
from ds_dip.planning.cut import PlanningError

#: Steps from which each changes the lines at once.
FIRST = 4
#: Of the later steps, the ones that the lines rest on, and the ones at which they are fitted anew.
EVERY, REFIT = 4, 16
#: Factors that moved less than this are not worth new plans.
_MOVED = 0.02
#: Steps between two estimates of what the deviations bring, and estimates that the mean is taken of.
PROBED, PROBES = 8, 4


class Adaptation:
    """Fits a planner's corrections to the steps that it is told of.

    What the first step took, in which much happens for the first time, does not count.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.reset(planner.corrections)

    def reset(self, corrections: Corrections) -> None:
        """Begin anew from these corrections, as when a run is resumed."""
        self._planner.corrections = corrections
        self._deviations = Deviations()
        self._pending: list[Measurement] = []
        self._told = self._probed = 0
        self._benefits: deque[float] = deque(maxlen=PROBES)
        self._cost = 0.0

    @property
    def tracking(self) -> bool:
        """Whether the deviations bring more seconds a step than telling of every step takes."""
        return self.benefit > self._cost

    @property
    def benefit(self) -> float:
        """Seconds a step that the newest estimates say the deviations bring."""
        return fmean(self._benefits) if self._benefits else 0.0

    def take(self, times: StepTimes) -> bool:
        """Take a step in; whether the planner's corrections have changed.

        A step whose batch the planner cannot make says nothing. Raises ValueError for a stage that is none of the
        planner's.
        """
        planner, before = self._planner, self._planner.corrections
        try:
            batch = planner.batches.of(times.step)
        except PlanningError:
            return False
        try:
            measured = planner.measurements(batch, times.stages)
        except LookupError as error:
            raise ValueError(f"step {times.step} was measured with a stage that it does not have: {error}") from error
        self._told, self._cost = self._told + 1, times.cost
        if self._told == 1:
            return False
        self._deviations.add(measured)
        fitted = self._fitted(times, measured)
        settled = self._told > FIRST and planner.settings.adaptive
        found = self._deviations.explained(fitted) if settled else fitted
        if fitted is not before or _moved(found, before):
            planner.corrections = found
        return planner.corrections is not before

    def probe(self, step: int) -> None:
        """Estimate now and then, where something deviates, what knowing it brings the order of a step.

        Errors as for ``Planner.plan``.
        """
        known = self._planner.corrections
        if not known.ranks and not known.shapes:
            self._benefits.clear()
        elif step >= self._probed + PROBED or step < self._probed:
            self._probed = step
            self._benefits.append(self._planner.benefit(step))

    def _fitted(self, times: StepTimes, measured: Iterable[Measurement]) -> Corrections:
        """The lines with this step in them; the old value where it is not for them."""
        known = self._planner.corrections
        if self._told <= FIRST or times.step % EVERY == 0:
            # What deviates is told by factors of its own; the lines are what is left.
            self._pending += [replace(m, measured=m.measured / _factor(known, m)) for m in measured]
            self._pending.append(Measurement("", ITERATION, times.makespan, times.iteration))
        if self._told <= FIRST or (times.step % REFIT == 0 and self._pending):
            known = known.updated(self._pending)
            self._pending = []
        return known


def _factor(corrections: Corrections, measured: Measurement) -> float:
    return corrections.deviation(measured.module, measured.kind, measured.rank, measured.tokens)


def _moved(new: Corrections, old: Corrections) -> bool:
    """Whether a factor is another one by more than is worth a plan."""

    def factors(of: Corrections) -> dict[object, float]:
        return {
            **{item.rank: item.factor for item in of.ranks},
            **{(item.module, item.kind, item.size): item.factor for item in of.shapes},
        }

    before, after = factors(old), factors(new)
    return any(
        abs(math.log(before.get(key, 1.0) / after.get(key, 1.0))) > _MOVED for key in before.keys() | after.keys()
    )
