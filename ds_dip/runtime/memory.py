"""What a batch's program really took of the accelerator's memory, beside what its plan predicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator


class Meter:
    """The accelerator's own peak between ``begin`` and ``end``; nothing where the device is the processor.

    Its allocator counts as operations are queued, so that reading it waits for nothing.
    """

    def __init__(self) -> None:
        self._accelerator: Any = get_accelerator()
        self._counts = not self._accelerator.is_synchronized_device()
        self._before = 0

    def begin(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Count from here."""
        if self._counts:
            self._accelerator.reset_peak_memory_stats()
            self._before = int(self._accelerator.memory_allocated()) - _gradients(parameters)

    def end(self, parameters: Iterable[torch.nn.Parameter]) -> float:
        """Bytes held at most beyond what was there and the parameters' gradients; 0 where none are counted."""
        if not self._counts:
            return 0.0
        most = int(self._accelerator.max_memory_allocated())
        return float(max(0, most - self._before - _gradients(parameters)))


def _gradients(parameters: Iterable[torch.nn.Parameter]) -> int:
    return sum(p.grad.numel() * p.grad.element_size() for p in parameters if p.grad is not None)
