"""Loads what a rank's stages need, by sample id."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from ds_dip.data import Dataset, collate, content_hash
from ds_dip.data.ahead import announce
from ds_dip.models.spec import Model, fields_of
from ds_dip.planning.batch import Batch, Microbatch


class Feed:
    """Fields of a batch's samples as tensors on the device; ``dtype`` turns a spec's dtype name into torch's.

    ``own`` are the fields that this rank's chunks read; ``seconds`` is what loading took of the batch under way.
    """

    def __init__(
        self, model: Model, device: torch.device, dtype: Callable[[str], torch.dtype], own: Sequence[str] = ()
    ) -> None:
        self._fields = fields_of([layer for module in model.modules for layer in module.layers])
        self._device, self._dtype = device, dtype
        self._dataset: Dataset | None = None
        self._batch: Batch | None = None
        self._hashes: dict[int, int] = {}
        self._own, self.seconds = tuple(own), 0.0
        self._following: Sequence[str] | None = None
        self._coming: Batch | None = None
        self._lock = threading.Lock()

    def begin(self, dataset: Dataset, batch: Batch, following: Sequence[str] | None = None) -> None:
        """Load from this dataset from now on; ``batch`` is what ``content`` counts its microbatches in.

        A dataset that loads ahead is told of the batch's samples and of those that ``following`` names after them;
        None where no training step is under way.
        """
        with self._lock:
            self._dataset, self._batch, self._hashes, self.seconds = dataset, batch, {}, 0.0
            self._following = following
            self._announce()

    def coming(self, batch: Batch) -> None:
        """Load this batch ahead, once the one before it is under way; any thread may call."""
        with self._lock:
            self._coming = batch
            self._announce()

    def _announce(self) -> None:
        if self._dataset is None or self._batch is None:
            return
        coming = self._coming if self._coming is not None and self._coming.step == self._batch.step + 1 else None
        samples = [*_ids(self._batch), *(self._following or ())]
        if coming is not None and self._following is not None:
            samples += _ids(coming)
        announce(self._dataset, samples, self._own)

    def load(
        self, microbatch: Microbatch, module: str, fields: tuple[str, ...], start: int, stop: int
    ) -> Mapping[str, torch.Tensor]:
        """The fields of a module's instances ``[start, stop)``; floating ones in the dtype the run trains in.

        Raises ValueError where what is loaded does not agree with the metadata.
        """
        assert self._dataset is not None
        began = time.monotonic()
        tensors = {}
        for name, array in collate(self._dataset, microbatch.samples, module, fields, start, stop).items():
            tensor = torch.from_numpy(array).to(self._device, non_blocking=True)
            tensors[name] = tensor.to(self._dtype("compute")) if tensor.is_floating_point() else tensor
        self.seconds += time.monotonic() - began
        return tensors

    def content(self, microbatch: int) -> int:
        """A hash of everything that the dataset gives here for a microbatch of the batch under way."""
        if microbatch not in self._hashes:
            assert self._dataset is not None
            assert self._batch is not None
            samples = self._batch.microbatches[microbatch].samples
            self._hashes[microbatch] = content_hash(self._dataset, samples, self._fields)
        return self._hashes[microbatch]


def _ids(batch: Batch) -> list[str]:
    return [sample.id for microbatch in batch.microbatches for sample in microbatch.samples]
