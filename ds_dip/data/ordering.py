"""Orders of samples beyond plain shuffling: by modality, within a budget of tokens.

An order is a pure function of its settings, the dataset's metadata and the seed: every process finds the same, and a
run goes on in the middle of an epoch from its step alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from ds_dip.data.ahead import announce
from ds_dip.data.faults import Fault, Lost, finds_faults
from ds_dip.data.metadata import Dataset, SampleMetadata
from ds_dip.data.reference import DatasetReference
from ds_dip.data.sampler import Sampler

#: Steps of a dataset's own order whose samples are ordered together.
_WINDOW = 64


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


def refuse_order(dataset: Dataset, what: str, instead: str) -> None:
    """Raise ValueError for a dataset with an order of its own, which what is around it would not keep."""
    if getattr(dataset, "order", None) is not None:
        raise ValueError(f"{what} has an order of its own, which is not kept here; {instead}")


class Ordered:
    """A dataset in an order of its own; ``dataset`` is a reference as JSON (factory and options).

    ``group``: ``even`` spreads the kinds of samples (which modules have instances) so that every batch has nearly the
    dataset's share of each; ``alike`` makes batches of one kind, and mixed ones of what is left over; None only
    shuffles. ``tokens`` is the most that a global batch has of ``module``: it takes fewer samples where they are long,
    but at least ``least``. Batches are never larger than the run's batch size; what does not fill one at the end of an
    epoch is left out. Of a dataset with an order, a mixture, the samples of ``_WINDOW`` steps at a time are ordered
    anew, none is left out, and so its weights hold. Raises ValueError for settings that mean nothing.
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

    @property
    def finds_faults(self) -> bool:
        """Whether the dataset in it does; see FaultFinding for this and the next ones."""
        return finds_faults(self._dataset)

    def faults(self, samples: Sequence[str], fields: Sequence[str]) -> list[Fault]:
        """See FaultFinding."""
        return self._dataset.faults(samples, fields) if finds_faults(self._dataset) else []

    def leave_out(self, samples: Sequence[str]) -> None:
        """See FaultFinding."""
        if finds_faults(self._dataset):
            self._dataset.leave_out(samples)

    def lost(self, samples: Sequence[str]) -> Lost:
        """See FaultFinding."""
        return self._dataset.lost(samples) if finds_faults(self._dataset) else Lost()

    def order(self, batch_size: int, seed: int = 0) -> Order:
        """The order of a run."""
        Sampler(len(self), batch_size)  # refuses what no order could serve
        if self._least > batch_size:
            raise ValueError(f"least is {self._least}, more than the batch's {batch_size} samples")
        own = getattr(self._dataset, "order", None)
        cutting = Cutting(self._sizes, self._tokens, self._least, batch_size)
        if own is None:
            return _Grouped(self._kinds, self._group, cutting, seed)
        return _Regrouped(self._kinds, self._group, cutting, seed, own(batch_size, seed))


@dataclass(frozen=True)
class Cutting:
    """How batches are cut: of ``batch_size`` samples, or as many as ``tokens`` holds, but at least ``least``."""

    sizes: np.ndarray
    tokens: int | None
    least: int
    batch_size: int

    def along(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Full batches along an order."""
        ends = np.cumsum(self.sizes[order])
        first = 0
        while True:
            last = first + self.batch_size
            if self.tokens is not None:
                before = int(ends[first - 1]) if first else 0
                fitting = int(np.searchsorted(ends, before + self.tokens, side="right"))
                last = min(last, max(fitting, first + self.least))
            # One that the end cut short, and not the budget, is no full batch.
            if last > len(order) or (last == len(order) and self.tokens is not None and last - first < self.batch_size):
                return
            yield order[first:last]
            first = last

    def distinct(self, order: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Full batches along an order that may hold a sample twice, no batch holding one twice; and what is left."""
        waiting, batches = order, list[np.ndarray]()
        while True:
            # The first time that each sample comes; the other times come later.
            for most in (4 * self.batch_size, len(waiting)):
                places = np.sort(np.unique(waiting[:most], return_index=True)[1])
                batch = next(self.along(waiting[places]), None)
                if batch is not None:
                    break
            else:
                return batches, waiting
            batches.append(batch)
            waiting = np.delete(waiting, places[: len(batch)])


class _Grouped:
    """Epochs of batches, made as they are asked for."""

    def __init__(self, kinds: np.ndarray, group: str | None, cutting: Cutting, seed: int) -> None:
        self._kinds, self._group, self._cutting, self._seed = kinds, group, cutting, seed
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
                f"an epoch of {self.samples} samples has no full batch of {self._cutting.batch_size}; give a smaller "
                "batch"
            )
        self._starts.append(self._starts[-1] + len(batches))

    def _batches(self, epoch: int) -> list[np.ndarray]:
        random, everything = np.random.default_rng([self._seed, epoch]), np.arange(self.samples)
        if self._group != "alike":
            order = _even(everything, self._kinds, random) if self._group == "even" else random.permutation(everything)
            return list(self._cutting.along(order))
        batches, left = [], []
        for kind in range(int(self._kinds.max()) + 1):
            own = random.permutation(np.flatnonzero(self._kinds == kind))
            full = list(self._cutting.along(own))
            batches += full
            left.append(own[sum(map(len, full)) :])
        batches += self._cutting.along(random.permutation(np.concatenate(left)))
        return [batches[place] for place in random.permutation(len(batches))]


class _Regrouped(_Grouped):
    """The samples of another order, ``_WINDOW`` of its steps at a time; what fills no batch comes with the next."""

    def __init__(self, kinds: np.ndarray, group: str | None, cutting: Cutting, seed: int, inner: Order) -> None:
        self._inner = inner
        self._left = [np.zeros(0, np.int64)]  # of the windows before each one
        super().__init__(_common(kinds, cutting.batch_size) if group == "alike" else kinds, group, cutting, seed)

    def _extend(self) -> None:
        # A window may fill no batch where batches are of one kind.
        self._starts.append(self._starts[-1] + len(self._epoch(len(self._starts) - 1)))

    def _batches(self, epoch: int) -> list[np.ndarray]:
        steps = range(epoch * _WINDOW, (epoch + 1) * _WINDOW)
        pool = np.concatenate([self._left[epoch], *(np.array(self._inner.indices(step)) for step in steps)])
        random = np.random.default_rng([self._seed, epoch])
        if self._group == "alike":
            found = [
                self._cutting.distinct(random.permutation(pool[self._kinds[pool] == kind]))
                for kind in range(int(self._kinds.max()) + 1)
            ]
            every = [batch for batches, _ in found for batch in batches]
            batches = [every[place] for place in random.permutation(len(every))]
            left = np.concatenate([left for _, left in found])
        else:
            order = _even(pool, self._kinds, random) if self._group == "even" else random.permutation(pool)
            batches, left = self._cutting.distinct(order)
        if len(self._left) == epoch + 1:
            self._left.append(left)
        return batches


def _even(pool: np.ndarray, kinds: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The pool's samples, those of each kind as far apart as they can be."""
    places = np.empty(len(pool))
    for kind in range(int(kinds.max()) + 1):
        own = random.permutation(np.flatnonzero(kinds[pool] == kind))
        places[own] = (np.arange(len(own)) + random.random()) / max(1, len(own))
    return pool[np.argsort(places, kind="stable")]


def _common(kinds: np.ndarray, batch_size: int) -> np.ndarray:
    """The kinds, those with less than a batch of samples as one with each other, or with the rarest of the others."""
    counts = np.bincount(kinds)
    rare = np.flatnonzero(counts < batch_size)
    if counts[rare].sum() < batch_size and len(rare) < len(counts):
        rare = np.append(rare, min(np.setdiff1d(np.arange(len(counts)), rare), key=lambda kind: int(counts[kind])))
    merged = np.arange(len(counts))
    merged[rare] = rare[0] if len(rare) else 0
    return np.unique(merged[kinds], return_inverse=True)[1]
