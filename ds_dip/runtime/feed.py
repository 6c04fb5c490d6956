"""Loads what a rank's stages need, by sample id."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ds_dip.data import Dataset, collate, content_hash
from ds_dip.models.spec import Model, fields_of
from ds_dip.planning.batch import Batch, Microbatch


class Feed:
    """Fields of a batch's samples as tensors on the device; ``dtype`` turns a spec's dtype name into torch's."""

    def __init__(self, model: Model, device: torch.device, dtype: Callable[[str], torch.dtype]) -> None:
        self._fields = fields_of([layer for module in model.modules for layer in module.layers])
        self._device, self._dtype = device, dtype
        self._dataset: Dataset | None = None
        self._batch: Batch | None = None
        self._hashes: dict[int, int] = {}

    def begin(self, dataset: Dataset, batch: Batch) -> None:
        """Load from this dataset from now on; ``batch`` is what ``content`` counts its microbatches in."""
        self._dataset, self._batch, self._hashes = dataset, batch, {}

    def load(
        self, microbatch: Microbatch, module: str, fields: tuple[str, ...], start: int, stop: int
    ) -> Mapping[str, torch.Tensor]:
        """The fields of a module's instances ``[start, stop)``; floating ones in the dtype the run trains in.

        Raises ValueError where what is loaded does not agree with the metadata.
        """
        assert self._dataset is not None
        tensors = {}
        for name, array in collate(self._dataset, microbatch.samples, module, fields, start, stop).items():
            tensor = torch.from_numpy(array).to(self._device, non_blocking=True)
            tensors[name] = tensor.to(self._dtype("compute")) if tensor.is_floating_point() else tensor
        return tensors

    def content(self, microbatch: int) -> int:
        """A hash of everything that the dataset gives here for a microbatch of the batch under way."""
        if microbatch not in self._hashes:
            assert self._dataset is not None
            assert self._batch is not None
            samples = self._batch.microbatches[microbatch].samples
            self._hashes[microbatch] = content_hash(self._dataset, samples, self._fields)
        return self._hashes[microbatch]
