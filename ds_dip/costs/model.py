"""The seam to everything that needs a cost: seconds and bytes of consecutive layers of a module."""

from __future__ import annotations

from typing import Protocol

from ds_dip.models.spec import Model, Sizes


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


def sample_seconds(model: Model, costs: CostModel, sizes: dict[str, Sizes]) -> float:
    """Seconds that one sample adds to a microbatch, forward and backward of all modules.

    The part of a cost that does not depend on the instances (launches, layer overheads) is left
    out: a microbatch pays it once, however many samples it holds.
    """
    nothing = Sizes((), ())
    total = 0.0
    for module in model.modules:
        own = sizes.get(module.name, nothing)
        if not len(own):
            continue
        layers = len(module.layers)
        total += costs.forward(module.name, 0, layers, own) - costs.forward(module.name, 0, layers, nothing)
        if model.backward(module.name):
            total += costs.backward(module.name, 0, layers, own) - costs.backward(module.name, 0, layers, nothing)
    return max(total, 0.0)
