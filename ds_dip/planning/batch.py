"""Microbatches: which samples run together, and how their instances are cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ds_dip.costs.corrections import Fit
from ds_dip.data.metadata import SampleMetadata
from ds_dip.models.spec import Sizes


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Samples that run together.

    ``sizes`` hold each module's instances in sample order. ``subs`` cut them: per module the
    instance ranges ``[start, stop)`` of its sub-microbatches (none where there is no instance).
    """

    samples: tuple[SampleMetadata, ...]
    sizes: Mapping[str, Sizes]
    subs: Mapping[str, tuple[tuple[int, int], ...]]

    def sub_sizes(self, module: str, sub: int) -> Sizes:
        """The instances of one sub-microbatch of one module."""
        return self.sizes[module].slice(*self.subs[module][sub])


@dataclass(frozen=True, slots=True)
class Batch:
    """One replica's share of a global batch.

    ``loss_count`` is what the loss is divided by: the supervised tokens (or samples) of the whole
    global batch, over all replicas. ``assigned`` is a number of 52 bits that replicas share if, and only
    if, they have assigned the same samples alike. ``adopted`` are the measured lines that samples were assigned by,
    none where by static costs.
    """

    step: int
    microbatches: tuple[Microbatch, ...]
    loss_count: int
    assigned: int = 0
    adopted: tuple[Fit, ...] = ()
