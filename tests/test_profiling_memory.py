"""Bytes kept for a backward, and the most at once: against tensors counted by hand."""

from __future__ import annotations

import torch

from ds_dip.profiling.memory import kept_bytes, peak_bytes

WEIGHT = torch.ones(100, requires_grad=True)


def product() -> torch.Tensor:
    x = torch.ones(100, requires_grad=True)
    return x * WEIGHT


def test_weights_are_not_kept_and_inputs_are() -> None:
    assert kept_bytes(product) == 400


def test_a_storage_that_is_saved_twice_counts_once() -> None:
    def run() -> torch.Tensor:
        x = torch.ones(100, requires_grad=True).exp()
        return x * x.view(10, 10).view(100)

    assert kept_bytes(run) == 400


def test_what_is_freed_in_between_does_not_add_up() -> None:
    def one_after_another() -> None:
        for _ in range(3):
            torch.zeros(1000)

    assert peak_bytes(one_after_another) == 4000


def test_what_is_held_together_adds_up() -> None:
    def together() -> None:
        held = [torch.zeros(1000) for _ in range(3)]
        del held

    assert peak_bytes(together) == 12000


def test_a_view_is_no_allocation() -> None:
    assert peak_bytes(lambda: torch.zeros(1000).view(10, 100)[3:]) == 4000
