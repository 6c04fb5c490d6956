"""Orders of samples beyond plain shuffling: by modality, within a budget of tokens.

An order is a pure function of its settings, the dataset's metadata and the seed: every process finds the same, and a
run goes on in the middle of an epoch from its step alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from ds_dip.data.ahead import announce
from ds_dip.data.metadata import Dataset, SampleMetadata
from ds_dip.data.reference import DatasetReference
from ds_dip.data.sampler import Sampler


class Order(Protocol):
    """Who comes when: the dataset indices of every step's global batch."""

    @property
    def samples(self) -> int:
        """Samples of the dataset."""
        ...

    def indices(self, step: int) -> list[int]:
        """Dataset indices of the global batch of ``step`` (0 is the first), none of them twice."""
        ...


def order_of(dataset: Dataset, batch_size: int, seed: int = 0) -> Order:
    """The dataset's own order (its method ``order``), else the plain sampler's.

    Raises ValueError where a batch is empty or larger than the dataset has samples for.
    """
    own = getattr(dataset, "order", None)
    found: Order = Sampler(len(dataset), batch_size, seed) if own is None else own(batch_size, seed)
    return found


class Ordered:
    """A dataset in an order of its own; ``dataset`` is a reference as JSON (factory and options).

    ``group``: ``even`` spreads the kinds of samples (which modules have instances) so that every batch has nearly the
    dataset's share of each; ``alike`` makes batches of one kind, and mixed ones of what is left over; None only
    shuffles. ``tokens`` is the most that a global batch has of ``module``: it takes fewer samples where they are long,
    but at least ``least``. Batches are never larger than the run's batch size; what does not fill one at the end of an
    epoch is left out. Raises ValueError for settings that mean nothing.
    """

    def __init__(
        self,
        dataset: Mapping[str, Any],
        group: str | None = None,
        tokens: int | None = None,
        module: str = "language",
        least: int = 1,
    ) -> None:
        if group not in (None, "even", "alike"):
            raise ValueError(f"group is {group!r}, expected even, alike or null")
        for name, value in (("tokens", tokens), ("least", least)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1")
        self._dataset = DatasetReference.parse(dataset).open()
        self._group, self._tokens, self._least = group, tokens, least
        kinds: dict[tuple[str, ...], int] = {}
        self._kinds, self._sizes = np.zeros(len(self._dataset), np.int64), np.zeros(len(self._dataset), np.int64)
        for index in range(len(self._dataset)):
            modules = self._dataset.metadata(index).modules
            self._kinds[index] = kinds.setdefault(tuple(sorted(n for n, own in modules.items() if own)), len(kinds))
            self._sizes[index] = sum(modules.get(module, ()))

    def __len__(self) -> int:
        return len(self._dataset)

    def metadata(self, index: int) -> SampleMetadata:
        """See Dataset."""
        return self._dataset.metadata(index)

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """See Dataset."""
        return self._dataset.load(sample, fields)

    @property
    def digest(self) -> str:
        """That of the dataset in it."""
        return str(getattr(self._dataset, "digest", ""))

    def ahead(self, samples: Sequence[str], fields: Sequence[str]) -> None:
        """Hand on what will be loaded to a dataset that loads ahead."""
        announce(self._dataset, samples, fields)

    def order(self, batch_size: int, seed: int = 0) -> Order:
        """The order of a run."""
        Sampler(len(self), batch_size)  # refuses what no order could serve
        if self._least > batch_size:
            raise ValueError(f"least is {self._least}, more than the batch's {batch_size} samples")
        return _Grouped(self._kinds, self._sizes, self._group, self._tokens, self._least, batch_size, seed)


class _Grouped:
    """Epochs of batches, made as they are asked for."""

    def __init__(
        self,
        kinds: np.ndarray,
        sizes: np.ndarray,
        group: str | None,
        tokens: int | None,
        least: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self._kinds, self._sizes, self._group, self._tokens = kinds, sizes, group, tokens
        self._least, self._batch_size, self._seed = least, batch_size, seed
        self._starts = [0]  # the first step of every epoch
        self._epoch = lru_cache(maxsize=4)(self._batches)
        self._extend()

    @property
    def samples(self) -> int:
        """See Order."""
        return len(self._kinds)

    def indices(self, step: int) -> list[int]:
        """See Order."""
        if step < 0:
            raise ValueError(f"step is {step}, expected a whole number of at least 0")
        while step >= self._starts[-1]:
            self._extend()
        epoch = int(np.searchsorted(self._starts, step, side="right")) - 1
        return [int(index) for index in self._epoch(epoch)[step - self._starts[epoch]]]

    def _extend(self) -> None:
        batches = self._epoch(len(self._starts) - 1)
        if not batches:
            raise ValueError(
                f"an epoch of {self.samples} samples has no full batch of {self._batch_size}; give a smaller batch"
            )
        self._starts.append(self._starts[-1] + len(batches))

    def _batches(self, epoch: int) -> list[np.ndarray]:
        random = np.random.default_rng([self._seed, epoch])
        if self._group != "alike":
            return list(self._cut(self._even(random) if self._group == "even" else random.permutation(self.samples)))
        batches, left = [], []
        for kind in range(int(self._kinds.max()) + 1):
            own = random.permutation(np.flatnonzero(self._kinds == kind))
            full = list(self._cut(own))
            batches += full
            left.append(own[sum(map(len, full)) :])
        batches += self._cut(random.permutation(np.concatenate(left)))
        return [batches[place] for place in random.permutation(len(batches))]

    def _even(self, random: np.random.Generator) -> np.ndarray:
        """All samples, those of each kind as far apart as they can be."""
        places = np.empty(self.samples)
        for kind in range(int(self._kinds.max()) + 1):
            own = random.permutation(np.flatnonzero(self._kinds == kind))
            places[own] = (np.arange(len(own)) + random.random()) / len(own)
        return np.argsort(places, kind="stable")

    def _cut(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Full batches along an order: of the batch's samples, or as many as the budget holds."""
        ends = np.cumsum(self._sizes[order])
        first = 0
        while True:
            last = first + self._batch_size
            if self._tokens is not None:
                before = int(ends[first - 1]) if first else 0
                fitting = int(np.searchsorted(ends, before + self._tokens, side="right"))
                last = min(last, max(fitting, first + self._least))
            # One that the end cut short, and not the budget, is no full batch.
            if last > len(order) or (
                last == len(order) and self._tokens is not None and last - first < self._batch_size
            ):
                return
            yield order[first:last]
            first = last
