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


def module_seconds(
    model: Model, costs: CostModel, sizes: Mapping[str, Sizes], *, alone: bool = True
) -> tuple[float, ...]:
    """Seconds that one sample adds to a microbatch in each module, forward and backward.

    The part of a cost that does not depend on the instances (launches, layer overheads) is left out: a microbatch pays
    it once, however many samples it holds. Not ``alone``, it is what a sample adds to others like it, as many as keep a
    device busy: a short one does not wait for the weights then, and costs what its operations do.
    """
    found = []
    for module in model.modules:
        own, layers, seconds = sizes.get(module.name, Sizes((), ())), len(module.layers), 0.0
        first, added = 0, 1
        if len(own):
            if not alone:
                first = added = min(_MOST_BESIDE, max(1, -(-_BUSY // max(1, sum(own.tokens)))))
            few, many = (Sizes(own.tokens * n, own.merged * n) for n in (first, first + added))
            seconds = costs.forward(module.name, 0, layers, many) - costs.forward(module.name, 0, layers, few)
            if model.backward(module.name):
                seconds += costs.backward(module.name, 0, layers, many) - costs.backward(module.name, 0, layers, few)
        found.append(max(seconds, 0.0) / added)
    return tuple(found)


def sample_seconds(model: Model, costs: CostModel, sizes: Mapping[str, Sizes]) -> float:
    """Seconds that one sample adds to a microbatch, of all modules: see ``module_seconds``."""
    return sum(module_seconds(model, costs, sizes))
