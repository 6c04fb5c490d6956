"""A stage's forward run again in its backward: the memory strategy ``full``.

Between the two only the stage's inputs are kept. Everything else, the outputs and the loss included, is made again
from them, and the one backward through that is the stage's only one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ds_dip.models.context import Context
from ds_dip.programs.program import Stage


@dataclass(frozen=True, slots=True)
class Again:
    """What a forward needs to run again as it ran: what it took from every source, and its context.

    ``random`` holds torch's random states of the processor and of the device as they were.
    """

    taken: Mapping[Stage, list[torch.Tensor]]
    context: Context
    random: tuple[torch.Tensor, ...]


def random_states(device: torch.device) -> tuple[torch.Tensor, ...]:
    """Torch's random states of the processor, and of ``device`` where it is another."""
    own = torch.get_rng_state()
    return (own,) if device.type == "cpu" else (own, torch.get_device_module(device).get_rng_state(device))


@contextmanager
def as_it_was(again: Again, device: torch.device) -> Iterator[None]:
    """Inside, what draws from torch's global states draws as in the first forward; outside nothing changes."""
    others = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(others, device_type="cuda" if device.type == "cpu" else device.type):
        torch.set_rng_state(again.random[0])
        if others:
            torch.get_device_module(device).set_rng_state(again.random[1], device)
        yield


def roots_of(tensors: list[torch.Tensor]) -> list[Any]:
    """Where the backward of a stage's floating outputs starts, None for one without a gradient.

    Not the outputs: their memory is free once whoever takes them has them.
    """
    return [
        torch.autograd.graph.get_gradient_edge(tensor) if tensor.requires_grad else None
        for tensor in tensors
        if tensor.is_floating_point()
    ]
