"""The values of balancing: what items cost, and which bucket each is in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
#: Whole units that all items of a resource come to take so many bits at most: sums of them are exact, in any order.
_BITS = 52
#: Bytes of a bucket at most: their sums are whole numbers of 64 bits.
_MOST_BYTES = 1e15


class BalancingError(ValueError):
    """Loads that cannot be balanced; the message says which, and what to change."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Loads in whole units, so that every machine sums them alike.

    ``work`` is (items, resources) in units of ``unit`` seconds; ``memory`` (items,) in bytes, ``capacity`` bytes.
    """

    work: Ints
    memory: Ints
    capacity: int
    unit: float


@dataclass(frozen=True, eq=False)
class Loads:
    """Items to be put into ``buckets``.

    ``seconds`` is (items, resources): what an item takes on each (DFLOP: encoder and language model). ``memory`` is
    (items,), bytes that an item holds, ``capacity`` the bytes of a bucket; without them there is no limit.
    Raises BalancingError for values that are negative or not finite, and for counts that do not go together.
    """

    seconds: Floats
    buckets: int
    memory: Floats | None = None
    capacity: float | None = None

    def __post_init__(self) -> None:
        if self.buckets < 1:
            raise BalancingError(f"buckets is {self.buckets}, expected at least 1")
        if self.seconds.ndim != 2 or self.seconds.shape[1] < 1:
            raise BalancingError(f"seconds has shape {self.seconds.shape}, expected (items, resources)")
        _check("seconds", self.seconds)
        with np.errstate(over="ignore"):
            if not np.isfinite(self.seconds.sum(axis=0)).all():
                raise BalancingError("the seconds of all items together are beyond what a float holds: check the costs")
        if (self.memory is None) != (self.capacity is None):
            raise BalancingError("memory and capacity go together: give both, or neither")
        if self.memory is not None and self.capacity is not None:
            if self.memory.shape != (self.items,):
                raise BalancingError(f"memory has shape {self.memory.shape}, expected ({self.items},)")
            _check("memory", self.memory)
            if not 1 <= self.capacity <= _MOST_BYTES:
                raise BalancingError(f"capacity is {self.capacity}, expected 1 to {_MOST_BYTES:.0e} bytes")
            heaviest = int(np.argmax(self.memory)) if self.items else 0
            if self.items and self.memory[heaviest] > self.capacity:
                raise BalancingError(
                    f"item {heaviest} needs {self.memory[heaviest]:,.0f} bytes and a bucket has {self.capacity:,.0f}: "
                    "leave it out, or give more memory"
                )

    @property
    def items(self) -> int:
        """How many items there are."""
        return int(self.seconds.shape[0])

    @property
    def resources(self) -> int:
        """How many resources an item has seconds on."""
        return int(self.seconds.shape[1])

    @cached_property
    def grid(self) -> Grid:
        """The loads in whole units: rounded by less than 2**-52 of the whole, memory up and capacity down."""
        total = float(self.seconds.sum(axis=0).max(initial=0.0))
        # A power of two: scaling by it rounds nothing away that was not below the unit.
        unit = math.ldexp(1.0, max(math.frexp(total)[1] - _BITS, -1000))
        # Rows one after another: arrays of another layout would have the kernels compiled again for them.
        work = np.ascontiguousarray(np.rint(self.seconds / unit), dtype=np.int64)
        if self.memory is None or self.capacity is None:
            return Grid(work, np.zeros(self.items, np.int64), 0, unit)
        return Grid(work, np.ascontiguousarray(np.ceil(self.memory), dtype=np.int64), int(self.capacity), unit)

    def fullest(self, bucket_of: Ints) -> float:
        """Seconds of the fullest bucket on its busiest resource, where item i is in bucket ``bucket_of[i]``."""
        return float(self.totals(bucket_of).max(initial=0)) * self.grid.unit

    def totals(self, bucket_of: Ints) -> Ints:
        """(buckets, resources) in units of the grid."""
        found = np.zeros((self.buckets, self.resources), np.int64)
        np.add.at(found, bucket_of, self.grid.work)
        return found

    def fits(self, bucket_of: Ints) -> bool:
        """Whether no bucket holds more bytes than it has."""
        if self.capacity is None:
            return True
        held = np.zeros(self.buckets, np.int64)
        np.add.at(held, bucket_of, self.grid.memory)
        return bool((held <= self.grid.capacity).all())


def in_shares(seconds: Floats) -> Floats:
    """(items, resources) as shares of each resource's sum; a resource that nobody takes is left out."""
    sums = seconds.sum(axis=0)
    shares: Floats = seconds[:, sums > 0] / sums[sums > 0]
    return shares


def _check(name: str, values: Floats) -> None:
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        item = int(np.argwhere(wrong)[0][0])
        raise BalancingError(
            f"item {item} has {name} {values[item]}: they must be finite and not negative, check its metadata and costs"
        )
