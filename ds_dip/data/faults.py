"""Samples whose content turns out to be broken when it is decoded: found before a step runs, and left out of it.

A dataset that can leave samples out has a ``finds_faults`` that is true and the methods of ``FaultFinding``. A sample
that is left out keeps its place and its sizes: its media are blank and none of its tokens is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from ds_dip.data.metadata import Dataset


class SampleError(ValueError):
    """A sample whose content cannot be made, whoever tries again; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A sample that cannot be made, by the id that the dataset's ``leave_out`` knows it by, and why."""

    sample: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Lost:
    """What a batch does not learn from since it is left out: supervised tokens, and whole samples."""

    tokens: int = 0
    samples: int = 0


class FaultFinding(Dataset, Protocol):
    """A dataset that leaves broken samples out; all ranks tell theirs of the same ones."""

    @property
    def finds_faults(self) -> bool:
        """Whether it looks for broken samples at all, the same on every rank."""
        ...

    def faults(self, samples: Sequence[str], fields: Sequence[str]) -> list[Fault]:
        """Those of these samples whose fields cannot be made and that are not left out yet; waits until they are."""
        ...

    def leave_out(self, samples: Sequence[str]) -> None:
        """Have these be without content from now on, by the ids that faults name."""
        ...

    def lost(self, samples: Sequence[str]) -> Lost:
        """What is not learned of these samples."""
        ...


def finds_faults(dataset: Dataset) -> TypeGuard[FaultFinding]:
    """Whether a dataset leaves broken samples out."""
    return bool(getattr(dataset, "finds_faults", False))
