"""A forward run again in its backward: all of a stage by the memory strategy ``full``, parts by ``selective``.

Of a whole stage only the inputs are kept between the two. Everything else, the outputs and the loss included, is made
again from them, and the one backward through that is the stage's only one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ds_dip.models.context import Context
from ds_dip.programs.program import Stage

#: Operators whose results ``selective`` keeps where a layer of another library cannot say it: multiplications by
#: weights, and attention. Norms, activation functions and everything else run again.
_KEPT = {
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
}


def operators_kept() -> Any:
    """What torch's checkpoint takes so that it keeps the results of these operators."""
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]  # torch has no types here


def _policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


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
