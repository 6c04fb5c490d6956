"""Several datasets as one, drawn by weight."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ds_dip.data.ahead import announce
from ds_dip.data.faults import Fault, FaultFinding, Lost, finds_faults
from ds_dip.data.metadata import SampleMetadata
from ds_dip.data.ordering import Order, refuse_order
from ds_dip.data.reference import DatasetReference
from ds_dip.data.sampler import epoch_order

#: Steps between two remembered states of an order.
_EVERY = 256
#: Of every dataset its epoch, its place in it, and what it was given less than its weight asks for (in units).
_State = tuple[tuple[int, int, int], ...]
#: Weights become whole numbers of this size, so that shares add up alike everywhere.
_SCALE = 1 << 40


class Mixture:
    """The samples of several datasets, an id's beginning naming its own.

    ``parts`` map a name to a dataset's reference as JSON (factory and options) with a ``weight``, its share of the
    samples of every step (by default its length): a step has that share to within one sample, and over many steps
    exactly. Each dataset is reshuffled when it is through, however often the others were.
    Raises ValueError for parts that mean nothing.
    """

    def __init__(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        if not parts:
            raise ValueError("a mixture has no parts; name at least one dataset")
        self._names = list(parts)
        self._parts, self._weights = [], []
        for name, part in parts.items():
            if not name or "/" in name:
                raise ValueError(f"part {name!r} has a name that cannot stand in an id; leave out '/'")
            dataset = DatasetReference.parse({key: value for key, value in part.items() if key != "weight"}).open()
            if not len(dataset):
                raise ValueError(f"part {name!r} has no samples; leave it out")
            refuse_order(dataset, f"part {name!r}", "put the order around the mixture, and a mixture's parts into it")
            weight = part.get("weight", len(dataset))
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
                raise ValueError(f"part {name!r} has the weight {weight!r}, expected a number above 0")
            self._parts.append(dataset)
            self._weights.append(float(weight))
        self._ends = list(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def metadata(self, index: int) -> SampleMetadata:
        """See Dataset."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} was asked for, and the mixture holds 0 to {len(self) - 1}")
        part = bisect_right(self._ends, index)
        own = self._parts[part].metadata(index - (self._ends[part - 1] if part else 0))
        return SampleMetadata(f"{self._names[part]}/{own.id}", own.modules, own.loss_tokens, own.merged)

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """See Dataset; ValueError for a sample of no part."""
        name, _, own = sample.partition("/")
        if name not in self._names:
            raise ValueError(f"sample {sample!r} is of no part of the mixture: {', '.join(self._names)}")
        return self._parts[self._names.index(name)].load(own, fields)

    @property
    def digest(self) -> str:
        """Those of its parts."""
        return " ".join(str(getattr(part, "digest", "")) for part in self._parts)

    def ahead(self, samples: Sequence[str], fields: Sequence[str]) -> None:
        """Hand on what will be loaded to the parts that load ahead."""
        for name, part in zip(self._names, self._parts, strict=True):
            own = [sample.partition("/")[2] for sample in samples if sample.partition("/")[0] == name]
            announce(part, own, fields)

    @property
    def finds_faults(self) -> bool:
        """Whether any part does; see FaultFinding for this and the next ones."""
        return any(finds_faults(part) for part in self._parts)

    def faults(self, samples: Sequence[str], fields: Sequence[str]) -> list[Fault]:
        """See FaultFinding."""
        return [
            Fault(f"{name}/{fault.sample}", fault.sentence)
            for name, part, own in self._finding(samples)
            for fault in part.faults(own, fields)
        ]

    def leave_out(self, samples: Sequence[str]) -> None:
        """See FaultFinding."""
        for _, part, own in self._finding(samples):
            part.leave_out(own)

    def lost(self, samples: Sequence[str]) -> Lost:
        """See FaultFinding."""
        found = [part.lost(own) for _, part, own in self._finding(samples)]
        return Lost(sum(own.tokens for own in found), sum(own.samples for own in found))

    def _finding(self, samples: Sequence[str]) -> Iterator[tuple[str, FaultFinding, list[str]]]:
        """The parts that find faults, with their names and their own ids of these samples."""
        for name, part in zip(self._names, self._parts, strict=True):
            own = [sample.partition("/")[2] for sample in samples if sample.partition("/")[0] == name]
            if own and finds_faults(part):
                yield name, part, own

    def order(self, batch_size: int, seed: int = 0) -> Order:
        """The order of a run; ValueError where a part has fewer samples than a step takes of it."""
        return _Mixed([len(part) for part in self._parts], self._weights, batch_size, seed)


class _Mixed:
    """What each step takes of every part, told from the states of steps before it."""

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise ValueError(f"the global batch is {batch_size} samples, expected at least 1")
        self._sizes, self._batch_size, self._seed = list(sizes), batch_size, seed
        whole = [max(1, round(_SCALE * (weight / max(weights)))) for weight in weights]
        self._unit = sum(whole)
        self._shares = [batch_size * weight for weight in whole]
        self._firsts = [0, *accumulate(sizes)]
        for size, share in zip(sizes, self._shares, strict=True):
            if share > size * self._unit:
                raise ValueError(
                    f"a step takes {share / self._unit:.1f} samples of a part that has {size}, and none may come "
                    "twice; give it less weight, or a smaller batch"
                )
        self._states: list[_State] = [tuple((0, 0, 0) for _ in sizes)]

    @property
    def samples(self) -> int:
        """See Order."""
        return self._firsts[-1]

    def indices(self, step: int) -> list[int]:
        """See Order."""
        if step < 0:
            raise ValueError(f"step is {step}, expected a whole number of at least 0")
        while len(self._states) <= step // _EVERY:
            state = self._states[-1]
            for _ in range(_EVERY):
                state = self._next(state)[0]
            self._states.append(state)
        state = self._states[step // _EVERY]
        for _ in range(step % _EVERY):
            state = self._next(state)[0]
        taken = []
        for part, (epoch, place, count) in enumerate(self._next(state)[1]):
            order = epoch_order(self._sizes[part], self._seed + part, epoch)
            taken += [self._firsts[part] + int(index) for index in order[place : place + count]]
        return [taken[place] for place in np.random.default_rng([self._seed, step]).permutation(len(taken))]

    def _next(self, state: _State) -> tuple[_State, list[tuple[int, int, int]]]:
        """The state after a step, and (epoch, place, count) that it takes of every part."""
        due = [owed + share for (_, _, owed), share in zip(state, self._shares, strict=True)]
        counts = [min(max(0, own // self._unit), size) for own, size in zip(due, self._sizes, strict=True)]
        # Rounded down together; what is missing goes to those that are owed most.
        by_need = sorted(range(len(due)), key=lambda part: (counts[part] * self._unit - due[part], part))
        for part in by_need * 2:
            if sum(counts) >= self._batch_size:
                break
            counts[part] += counts[part] < self._sizes[part]
        for part in reversed(by_need):
            while sum(counts) > self._batch_size and counts[part]:
                counts[part] -= 1
        taken, after = [], []
        for (epoch, place, _), own, count, size in zip(state, due, counts, self._sizes, strict=True):
            if place + count > size:  # a step across two epochs could hold a sample twice
                epoch, place = epoch + 1, 0
            taken.append((epoch, place, count))
            after.append((epoch, place + count, own - count * self._unit))
        return tuple(after), taken
