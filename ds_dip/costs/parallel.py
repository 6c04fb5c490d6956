"""Tensor parallelism: a rank of the pipeline is a group of devices that share every layer (Megatron-LM)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ds_dip.models.spec import Model


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """How the devices of a rank share its layers; costs and bytes are then those of one device.

    Matrices are cut among ``degree`` devices by columns, then by rows, attention by heads. The sums behind are
    all-reduced by a ring over the link inside a node, of ``link`` bytes per second and ``link_latency`` seconds. With
    ``sequence`` norms, residuals and messages are cut by rows (sequence parallelism: an all-reduce is then a
    reduce-scatter and an all-gather, of as many bytes); without it every device has and does all of them.
    """

    degree: int = 1
    sequence: bool = True
    link: float = 1e9
    link_latency: float = 5e-5

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ValueError(f"tensor-parallel degree is {self.degree}: at least 1 is needed")
        if not (math.isfinite(self.link) and self.link > 0):
            raise ValueError(f"the tensor-parallel link is {self.link}: give a finite number above 0")
        if not (math.isfinite(self.link_latency) and self.link_latency >= 0):
            raise ValueError(f"the tensor-parallel latency is {self.link_latency}: give a finite number of at least 0")

    @property
    def rows(self) -> int:
        """Among how many devices what lies between the matrices is shared."""
        return self.degree if self.sequence else 1

    def reduce_seconds(self, bytes: float) -> float:
        """Seconds of an all-reduce of this many bytes."""
        if self.degree == 1:
            return 0.0
        others = self.degree - 1
        return others * self.link_latency + 2.0 * others / self.degree * bytes / self.link


ALONE = TensorParallel()


def check_heads(model: Model, degree: int) -> None:
    """Raise ValueError where a module's heads do not divide among ``degree`` devices."""
    for module in model.modules:
        for heads in {layer.options.get("heads", degree) for layer in module.layers}:
            if heads % degree:
                raise ValueError(
                    f"module {module.name} has {heads} heads, which do not divide among {degree} tensor-parallel "
                    "devices: give a degree that divides them"
                )
