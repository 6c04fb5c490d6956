"""The seam to everything that needs a cost: seconds and bytes of consecutive layers of a module."""

from __future__ import annotations

from collections.abc import Mapping
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


def module_seconds(model: Model, costs: CostModel, sizes: Mapping[str, Sizes], samples: int = 1) -> tuple[float, ...]:
    """Seconds that one sample adds to a microbatch of ``samples`` in each module, forward and backward.

    It is the mean of what the second half of so many samples like it adds to the first. A microbatch pays the part of a
    cost that does not depend on the instances (launches, layer overheads, reading the weights) once, however many
    samples it holds; and a sample too small to keep a device busy alone is not small beside others.
    """
    first = samples // 2
    found = []
    for module in model.modules:
        own, layers, seconds = sizes.get(module.name, Sizes((), ())), len(module.layers), 0.0
        if len(own):
            whole, half = (Sizes(own.tokens * n, own.merged * n) for n in (samples, first))
            seconds = costs.forward(module.name, 0, layers, whole) - costs.forward(module.name, 0, layers, half)
            if model.backward(module.name):
                seconds += costs.backward(module.name, 0, layers, whole)
                seconds -= costs.backward(module.name, 0, layers, half)
        found.append(max(seconds, 0.0) / (samples - first))
    return tuple(found)


def sample_seconds(model: Model, costs: CostModel, sizes: Mapping[str, Sizes]) -> float:
    """Seconds that one sample adds to a microbatch, of all modules: see ``module_seconds``."""
    return sum(module_seconds(model, costs, sizes))
