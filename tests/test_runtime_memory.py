"""A batch's peak by the accelerator's own count, without the gradients of parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ds_dip.runtime import memory


class Accelerator:
    def __init__(self, synchronized: bool) -> None:
        self.synchronized, self.held, self.most = synchronized, 0, 0

    def is_synchronized_device(self) -> bool:
        return self.synchronized

    def memory_allocated(self) -> int:
        return self.held

    def max_memory_allocated(self) -> int:
        return self.most

    def reset_peak_memory_stats(self) -> None:
        self.most = self.held


@pytest.mark.parametrize("synchronized", [False, True])
def test_the_peak_is_what_came_beside_gradients(synchronized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator: Any = Accelerator(synchronized)
    monkeypatch.setattr(memory, "get_accelerator", lambda: accelerator)
    weight, other = torch.nn.Parameter(torch.zeros(10)), torch.nn.Parameter(torch.zeros(5))
    other.grad = torch.zeros(5)
    meter = memory.Meter()
    accelerator.held = 1000
    meter.begin([weight, other])
    accelerator.most = 1000 + 500 + 40
    weight.grad = torch.zeros(10)
    assert meter.end([weight, other]) == (0.0 if synchronized else 500.0)
