"""The sampler: it owns the order of the samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True, slots=True)
class Sampler:
    """Global batches of a dataset of ``samples`` samples, ``batch_size`` a step, reshuffled every epoch.

    Every global batch is full and holds no sample twice: the samples left over at the end of an epoch are dropped.
    The order follows from ``seed`` alone, so the whole state of a run is the seed and the step.
    Raises ValueError where a batch is empty or larger than the dataset.
    """

    samples: int
    batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.batch_size <= self.samples:
            raise ValueError(
                f"the global batch is {self.batch_size} samples and the dataset holds {self.samples}; "
                "give a batch of at least 1 sample and at most the dataset's"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Full global batches in one pass over the dataset."""
        return self.samples // self.batch_size

    def indices(self, step: int) -> list[int]:
        """Dataset indices of the global batch of ``step`` (0 is the first)."""
        if step < 0:
            raise ValueError(f"step is {step}, expected a whole number of at least 0")
        epoch, place = divmod(step, self.steps_per_epoch)
        order = epoch_order(self.samples, self.seed, epoch)
        return [int(index) for index in order[place * self.batch_size : (place + 1) * self.batch_size]]


@lru_cache(maxsize=16)
def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """Indices of a dataset in the order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(samples)
