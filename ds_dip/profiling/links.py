"""Transfers between two ranks and collectives of a group, over the backend that training uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator

from ds_dip.costs.table import Row
from ds_dip.profiling.timing import FEWEST, Sample
from ds_dip.runtime.transport import lost_rank

#: Rounds of one measurement: every rank must make as many, so none may look at its own clock to end.
_ROUNDS = 10 * FEWEST


class Links:
    """Groups of the first 2, 4, … ranks, made once by all of them."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype, self._rank = device, dtype, dist.get_rank()
        self._groups: dict[int, Any] = {}
        size = 2
        while size <= dist.get_world_size():
            self._groups[size] = torch.distributed.new_group(list(range(size)))
            size *= 2

    def measure(self, name: str, shape: dict[str, int]) -> Row | None:
        """A link's row on the ranks that took part, None elsewhere; the seconds stand in the forward's column.

        A backend that does not have a collective gives a row of no repeats whose note says so.
        """
        group = shape.get("group", 2)
        if self._rank >= group:
            return None
        elements = max(1, shape["bytes"] // torch.empty(0, dtype=self._dtype).element_size())
        tensor = torch.ones(elements, device=self._device, dtype=self._dtype)
        once = self._transfer(tensor) if name == "transfer" else self._collective(name, tensor, group)
        try:
            once()
        except (RuntimeError, NotImplementedError) as error:
            if lost_rank(error):
                raise
            why = str(error).strip().splitlines()[0][:120]
            return Row(name, shape, note=f"not measured: {torch.distributed.get_backend()} says {why}")
        values = []
        for _ in range(_ROUNDS):
            torch.distributed.barrier(self._groups[group])
            began = time.perf_counter()
            once()
            get_accelerator().synchronize()
            values.append(time.perf_counter() - began)
        # A round of a transfer goes there and back.
        share = 0.5 if name == "transfer" else 1.0
        sample = Sample(tuple(share * value for value in values))
        note = "" if sample.error <= 0.02 else f"standard error {100 * sample.error:.1f} % after {_ROUNDS} rounds"
        return Row(name, shape, forward=sample.seconds, repeats=_ROUNDS, note=note)

    def _transfer(self, tensor: torch.Tensor) -> Callable[[], None]:
        def there_and_back() -> None:
            peer = 1 - self._rank
            if self._rank == 0:
                dist.isend(tensor, peer, group=self._groups[2]).wait()
                dist.irecv(tensor, peer, group=self._groups[2]).wait()
            else:
                dist.irecv(tensor, peer, group=self._groups[2]).wait()
                dist.isend(tensor, peer, group=self._groups[2]).wait()

        return there_and_back

    def _collective(self, name: str, tensor: torch.Tensor, size: int) -> Callable[[], None]:
        group = self._groups[size]
        if name == "all_reduce":
            return lambda: torch.distributed.all_reduce(tensor, group=group)
        part = torch.ones(-(-len(tensor) // size), device=self._device, dtype=self._dtype)
        parts = [torch.empty_like(part) for _ in range(size)]
        if name == "all_gather":
            return lambda: torch.distributed.all_gather(parts, part, group=group)
        return lambda: torch.distributed.reduce_scatter(part, parts, group=group)
