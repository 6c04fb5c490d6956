"""The seam to everything that needs a cost: seconds and bytes of consecutive layers of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ds_dip.models.spec import Model, Sizes

#: Tokens of a microbatch that keep a device busy, and samples at most that are taken to be so many.
_BUSY, _MOST_BESIDE = 2048, 16


class CostModel(Protocol):
    """Costs of the layers ``start`` to ``stop`` (exclusive) of a module for some instances.

    Pure functions: the same arguments give the same answer in every process, so that all replicas
    decide alike. Seconds and bytes are finite and not negative.
    """

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the forward."""
        ...

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the backward, input and weight gradients together."""
        ...

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Bytes that the forward keeps until the backward has run."""
        ...

    def transfer(self, bytes: float) -> float:
        """Seconds that this many bytes take from one rank to another, without contention."""
        ...


def alone_seconds(model: Model, costs: CostModel, sizes: Mapping[str, Sizes]) -> tuple[float, ...]:
    """Seconds of each module in a microbatch of these instances alone, forward and backward; 0 where it has none."""
    return tuple(
        _seconds(model, costs, module.name, own) if (own := sizes.get(module.name)) else 0.0 for module in model.modules
    )


def module_seconds(
    model: Model, costs: CostModel, sizes: Mapping[str, Sizes], *, busy: bool = False
) -> tuple[float, ...]:
    """Seconds that one sample adds to a microbatch in each module, forward and backward.

    The part of a cost that does not depend on the instances (launches, layer overheads) is left out: a microbatch pays
    it once, however many samples it holds. With ``busy`` it is what a sample adds to others like it, as many as keep a
    device busy: a short one does not wait for the weights then, and costs what its operations do.
    """
    found = []
    for module in model.modules:
        own, seconds, first, added = sizes.get(module.name), 0.0, 0, 1
        if own:
            if busy:
                first = added = min(_MOST_BESIDE, max(1, -(-_BUSY // max(1, sum(own.tokens)))))
            few, many = (Sizes(own.tokens * n, own.merged * n) for n in (first, first + added))
            seconds = _seconds(model, costs, module.name, many) - _seconds(model, costs, module.name, few)
        found.append(max(seconds, 0.0) / added)
    return tuple(found)


def sample_seconds(model: Model, costs: CostModel, sizes: Mapping[str, Sizes]) -> float:
    """Seconds that one sample adds to a microbatch, of all modules: see ``module_seconds``."""
    return sum(module_seconds(model, costs, sizes))


def _seconds(model: Model, costs: CostModel, module: str, sizes: Sizes) -> float:
    layers = len(model.module(module).layers)
    seconds = costs.forward(module, 0, layers, sizes)
    return seconds + costs.backward(module, 0, layers, sizes) if model.backward(module) else seconds
