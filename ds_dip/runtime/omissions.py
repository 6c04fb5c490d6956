"""Broken samples are left out of a step before it runs, by all ranks alike.

Only the rank that decodes a sample's media learns that they are broken, and the loss is divided by what all ranks
learn from. So each rank makes its fields of the batch before the batch runs, which is done ahead of the step anyway;
then all ranks exchange what cannot be made, blank the same samples and divide the loss by what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from deepspeed.utils import logger

from ds_dip.data import Dataset
from ds_dip.data.faults import Fault, finds_faults
from ds_dip.planner.codec import Codec
from ds_dip.planning.batch import Batch
from ds_dip.runtime.exchange import gather

_FAULTS: Codec[tuple[Fault, ...]] = Codec(tuple[Fault, ...], "samples that cannot be made")


class Omissions:
    """What is left out of a run; ``fields`` are this rank's, and ``loss`` the rule that a loss is divided by.

    ``counts`` says whether this rank counts what its replica loses: one rank of each does. ``faults`` are those found
    so far, on any rank.
    """

    def __init__(self, fields: Sequence[str], loss: str, *, counts: bool, device: torch.device) -> None:
        self._fields, self._loss, self._counts, self._device = tuple(fields), loss, counts, device
        self.faults: list[Fault] = []

    def agree(self, dataset: Dataset, batch: Batch) -> int:
        """What the batch's loss is divided by, once what is broken is left out; every rank calls it for its own batch.

        Raises ValueError, on every rank, where nothing is left to learn from.
        """
        if not finds_faults(dataset):
            return batch.loss_count
        samples = [sample.id for microbatch in batch.microbatches for sample in microbatch.samples]
        own = tuple(dataset.faults(samples, self._fields)) if self._fields else ()
        if self._sum(len(own)):
            found = {fault.sample: fault for faults in gather(_FAULTS, own) for fault in faults}
            dataset.leave_out(list(found))
            self.faults += found.values()
            if dist.get_rank() == 0:
                for fault in found.values():
                    logger.warning(f"step {batch.step} leaves out sample {fault.sample!r}: {fault.sentence}")
        if not self.faults:
            return batch.loss_count
        lost = dataset.lost(samples) if self._counts else None
        count = batch.loss_count - self._sum(0 if lost is None else getattr(lost, self._loss))
        if count < 1:
            raise ValueError(
                f"step {batch.step} has nothing left to learn from: all its samples with a loss are left out, the "
                f"newest since {self.faults[-1].sentence}"
            )
        return count

    def _sum(self, value: int) -> int:
        total = torch.tensor([value], dtype=torch.int64, device=self._device)
        dist.all_reduce(total)
        return int(total)
