"""Predictions pulled to what this machine really does (DFLOP, adaptive correction).

Per module and kind of stage a line ``factor * predicted + offset`` is fitted to measured stages.
The offset is what a stage costs whatever its size; the factor is how far the rates were off. What
single ranks and shapes deviate from these lines comes on top (see ``deviations``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ds_dip.costs.model import CostModel
from ds_dip.models.partition import Chunk
from ds_dip.models.spec import Sizes

#: Newest measurements kept per module and kind; old ones tell of a machine that may have changed.
WINDOW = 192
ITERATION = "iteration"
#: The same for iterations: their predictions rest on corrections, and older ones on older corrections.
ITERATIONS = 24
#: By which share a constant must leave less than a factor does, to be believed.
_CLEARLY = 0.5
#: Seconds that no stage is as short as.
_NOTHING = 1e-12


@dataclass(frozen=True, slots=True)
class Measurement:
    """Uncorrected prediction and measurement of one stage (``kind`` ``F`` or ``B``), in seconds.

    ``rank`` of the pipeline ran it, over ``tokens`` tokens. With the module ``""`` and the kind
    ``"iteration"``: a makespan and the whole iteration.
    """

    module: str
    kind: str
    predicted: float
    measured: float
    rank: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """The correction of one module's stages of one kind; seconds, never negative."""

    module: str
    kind: str
    factor: float
    offset: float


@dataclass(frozen=True, slots=True)
class RankFactor:
    """How much longer every stage of one rank takes than the fits say."""

    rank: int
    factor: float


@dataclass(frozen=True, slots=True)
class ShapeFactor:
    """How much longer a module's stages of one kind take than the fits say, in one class of sizes."""

    module: str
    kind: str
    size: int
    factor: float


@dataclass(frozen=True, slots=True)
class Corrections:
    """Fitted corrections and the measurements that they rest on; a value, updated into a new one."""

    fits: tuple[Fit, ...] = ()
    window: tuple[Measurement, ...] = ()
    ranks: tuple[RankFactor, ...] = ()
    shapes: tuple[ShapeFactor, ...] = ()

    def updated(self, measurements: Iterable[Measurement]) -> Corrections:
        """Corrections that know these measurements too; the oldest beyond the window are dropped.

        Raises ValueError for a measurement that is negative or not finite.
        """
        kept: dict[tuple[str, str], list[Measurement]] = {}
        for item in (*self.window, *measurements):
            for name, value in (("predicted", item.predicted), ("measured", item.measured)):
                if not math.isfinite(value) or value < 0:
                    raise ValueError(
                        f"{name} is {value} s for {item.kind} of {item.module!r}: give a time of at least 0"
                    )
            kept.setdefault((item.module, item.kind), []).append(item)
        window = {key: items[-(ITERATIONS if key[1] == ITERATION else WINDOW) :] for key, items in sorted(kept.items())}
        fits = tuple(Fit(*key, *(_around if key[1] == ITERATION else _line)(items)) for key, items in window.items())
        return replace(self, fits=fits, window=tuple(item for items in window.values() for item in items))

    @property
    def plain(self) -> Corrections:
        """The fits alone, without what single ranks and shapes deviate."""
        return replace(self, ranks=(), shapes=())

    @property
    def applied(self) -> tuple[object, ...]:
        """What predictions depend on: equal for corrections that predict the same."""
        return self.fits, self.ranks, self.shapes

    def seconds(self, module: str, kind: str, predicted: float, otherwise: float | None = None) -> float:
        """The fitted prediction of a stage; of what was never measured ``otherwise``, or as it is."""
        for fit in self.fits:
            if fit.module == module and fit.kind == kind:
                return fit.factor * predicted + fit.offset
        return predicted if otherwise is None else otherwise

    def deviation(self, module: str, kind: str, rank: int, tokens: int) -> float:
        """The factor of a stage's rank and shape on its fitted prediction."""
        factor = 1.0
        for of_rank in self.ranks:
            if of_rank.rank == rank:
                factor *= of_rank.factor
        if self.shapes:
            size = size_class(tokens)
            for shape in self.shapes:
                if shape.size == size and shape.module == module and shape.kind == kind:
                    factor *= shape.factor
        return factor

    def iteration(self, makespan: float, otherwise: float | None = None) -> float:
        """Predicted seconds of a whole iteration: the makespan and what surrounds it (reduction, step).

        ``otherwise`` is the prediction before any iteration was measured.
        """
        return self.seconds("", ITERATION, makespan, otherwise)


def size_class(tokens: int) -> int:
    """The class of sizes that a stage of so many tokens is in: four classes an octave, 0 for no token."""
    return 0 if tokens < 1 else 1 + round(4 * math.log2(tokens))


@dataclass(frozen=True)
class CorrectedCosts:
    """A cost model with corrections on top; memory and transfers are those of the base.

    ``chunks`` say which rank runs what; without them no rank's factor applies.
    """

    base: CostModel
    corrections: Corrections
    chunks: Mapping[tuple[str, int], Chunk]

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the forward."""
        return self.corrected(module, start, "F", sizes, self.base.forward(module, start, stop, sizes))

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the backward."""
        return self.corrected(module, start, "B", sizes, self.base.backward(module, start, stop, sizes))

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Bytes that the forward keeps until the backward has run."""
        return self.base.activation_bytes(module, start, stop, sizes)

    def transfer(self, bytes: float) -> float:
        """Seconds of a transfer."""
        return self.base.transfer(bytes)

    def corrected(self, module: str, start: int, kind: str, sizes: Sizes, predicted: float) -> float:
        """Seconds of a stage of which the base predicts so many."""
        seconds = self.corrections.seconds(module, kind, predicted)
        if self.corrections.ranks or self.corrections.shapes:
            chunk = self.chunks.get((module, start))
            rank = -1 if chunk is None else chunk.rank
            seconds *= self.corrections.deviation(module, kind, rank, sum(sizes.tokens))
        return seconds


def _line(items: list[Measurement]) -> tuple[float, float]:
    """(factor, offset) by the Theil-Sen estimator: up to a quarter of wild measurements do no harm.

    Measurements too noisy for a line with a meaning give a factor alone, or a constant where that tells them clearly
    better: a prediction that does not depend on the work is the last resort.
    """
    predicted = np.array([item.predicted for item in items])
    measured = np.array([item.measured for item in items])
    first, second = np.triu_indices(len(items), 1)
    steps = predicted[second] - predicted[first]
    # Pairs of nearly equal predictions say nothing about the slope but much about the noise.
    apart = np.abs(steps) > max(0.05 * float(np.max(predicted)), _NOTHING)
    constant = float(np.median(measured))
    falls = False
    if np.count_nonzero(apart) >= 3:
        slope = float(np.median((measured[second] - measured[first])[apart] / steps[apart]))
        offset = float(np.median(measured - slope * predicted))
        if slope >= 0 and offset >= 0:
            return slope, offset
        falls = slope < 0
    positive = predicted > _NOTHING
    if not positive.any():
        return 1.0, constant
    factor = float(np.median(measured[positive] / predicted[positive]))
    if falls and _CLEARLY * float(np.median(np.abs(measured - factor * predicted))) > float(
        np.median(np.abs(measured - constant))
    ):
        return 0.0, constant
    return factor, 0.0


def _around(items: list[Measurement]) -> tuple[float, float]:
    """(factor, offset) of iterations: what surrounds a makespan does not depend on it, or else is a share of it."""
    more = float(np.median([item.measured - item.predicted for item in items]))
    if more >= 0:
        return 1.0, more
    return float(np.median([item.measured / max(item.predicted, _NOTHING) for item in items])), 0.0
