"""A sample's metadata: what planning needs, known without decoding the sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class SampleMetadata:
    """Sizes of a sample's instances per module, in tokens as that module counts them.

    ``merged`` is what each instance becomes downstream (the same sizes where it is missing);
    ``loss_tokens`` the number of supervised tokens.
    """

    id: str
    modules: Mapping[str, tuple[int, ...]]
    loss_tokens: int
    merged: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Dataset(Protocol):
    """Samples that tell their metadata without decoding and are loaded by id, field by field."""

    def __len__(self) -> int: ...

    def metadata(self, index: int) -> SampleMetadata:
        """Metadata of the sample at ``index``; cheap, no decoding."""
        ...

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """For each field, one array an instance of the module the field belongs to."""
        ...
