"""Which ranks and which shapes take longer or shorter than the fits say (DFLOP, adaptive correction).

A stage's residual, log(measured / fitted), is taken apart into a part of its rank and a part of its
shape (module, kind, class of sizes) by medians in turn, so that a slow rank is no slow shape and a
few wild stages are neither. What noise could explain is left at 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ds_dip.costs.corrections import ITERATION, Corrections, Measurement, RankFactor, ShapeFactor, size_class

#: Stages remembered; shapes that are rare have to be found among them.
KEPT = 1024
#: Newest stages of a rank, and of a shape, that its factor rests on.
OF_RANK, OF_SHAPE = 32, 8
#: The fewest that say anything.
LEAST_OF_RANK, LEAST_OF_SHAPE = 8, 4
#: Logarithm of the smallest factor that is believed, and standard errors that it must be away from 1.
_LEAST, _ERRORS = float(np.log(1.05)), 4.0
_ROUNDS = 3
_Key = TypeVar("_Key", bound=Hashable)
_Shape = tuple[str, str, int]


class Deviations:
    """The newest measured stages, and the factors that they speak for."""

    def __init__(self) -> None:
        self._stages: deque[Measurement] = deque(maxlen=KEPT)

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Take stages in; whole iterations and times of nothing are left out."""
        self._stages.extend(m for m in measurements if m.kind != ITERATION and m.measured > 0)

    def clear(self) -> None:
        """Forget everything: the fits are other ones."""
        self._stages.clear()

    def explained(self, corrections: Corrections) -> Corrections:
        """The corrections, with the factors of ranks and shapes that the remembered stages speak for."""
        residuals, ranks, shapes = [], [], []
        for stage in self._stages:
            fitted = corrections.seconds(stage.module, stage.kind, stage.predicted)
            if fitted > 0:
                residuals.append(float(np.log(stage.measured / fitted)))
                ranks.append(stage.rank)
                shapes.append((stage.module, stage.kind, size_class(stage.tokens)))
        if not residuals:
            return corrections.plain
        of_rank, of_shape = _apart(np.array(residuals), ranks, shapes)
        return Corrections(
            corrections.fits,
            corrections.window,
            tuple(RankFactor(rank, float(np.exp(value))) for rank, value in sorted(of_rank.items())),
            tuple(ShapeFactor(*shape, float(np.exp(value))) for shape, value in sorted(of_shape.items())),
        )


def _apart(
    residuals: np.ndarray, ranks: Sequence[int], shapes: Sequence[_Shape]
) -> tuple[dict[int, float], dict[_Shape, float]]:
    """The part of every rank and of every shape that is beyond noise, as logarithms."""
    by_rank, by_shape = _newest(ranks, OF_RANK), _newest(shapes, OF_SHAPE)
    rank_part, shape_part = np.zeros_like(residuals), np.zeros_like(residuals)
    of_rank: dict[int, float] = {}
    of_shape: dict[_Shape, float] = {}
    for _ in range(_ROUNDS):
        of_rank = _beyond_noise(residuals - shape_part, by_rank, LEAST_OF_RANK)
        rank_part = np.array([of_rank.get(rank, 0.0) for rank in ranks])
        of_shape = _beyond_noise(residuals - rank_part, by_shape, LEAST_OF_SHAPE)
        shape_part = np.array([of_shape.get(shape, 0.0) for shape in shapes])
    return of_rank, of_shape


def _newest(keys: Sequence[_Key], most: int) -> dict[_Key, list[int]]:
    places: dict[_Key, deque[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, deque(maxlen=most)).append(place)
    return {key: list(of_key) for key, of_key in places.items()}


def _beyond_noise(residuals: np.ndarray, groups: Mapping[_Key, list[int]], least: int) -> dict[_Key, float]:
    """Medians of the groups that are further from 0 than ``_ERRORS`` of their standard errors.

    A few stages say little of their own noise, so that of all groups is the least that each is taken to have.
    """
    middles = {key: float(np.median(residuals[places])) for key, places in groups.items()}
    apart = {key: np.abs(residuals[places] - middles[key]) for key, places in groups.items()}
    common = float(np.median(np.concatenate(list(apart.values()))))
    found = {}
    for key, places in groups.items():
        # 1.4826 makes the median deviation a standard one, 1.2533 that of a mean that of a median.
        error = 1.2533 * 1.4826 * max(common, float(np.median(apart[key]))) / len(places) ** 0.5
        if len(places) >= least and abs(middles[key]) > max(_LEAST, _ERRORS * error):
            found[key] = middles[key]
    return found
