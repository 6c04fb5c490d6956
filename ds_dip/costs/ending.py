"""What a batch ends with on every rank: gradients summed over replicas, and the optimizer's step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ds_dip.models.parameters import parameters
from ds_dip.models.partition import Partition
from ds_dip.models.spec import ELEMENT_BYTES, Model

#: Bytes of a gradient, which is accumulated and reduced in fp32.
_GRADIENT = 4
#: Bytes an element that AdamW moves beside the weights it writes: gradient, fp32 weight and two moments read, the last
#: three written.
_STEP = 4 + 3 * 4 + 3 * 4


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a batch on the devices of ``replicas`` replicas under ZeRO-1.

    Over a link of ``link`` bytes per second and ``link_latency`` seconds gradients are reduce-scattered in fp32 and
    weights all-gathered in ``compute`` by rings; each device steps its share of a rank's parameters at ``memory`` bytes
    per second. Nothing of it overlaps with backwards.
    """

    replicas: int
    link: float
    link_latency: float
    memory: float
    compute: str = "float32"

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}: at least 1 is needed")
        for name in ("link", "memory"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: give a finite number above 0")
        if not (math.isfinite(self.link_latency) and self.link_latency >= 0):
            raise ValueError(f"link_latency is {self.link_latency}: give a finite number of at least 0")
        if self.compute not in ELEMENT_BYTES:
            raise ValueError(f"compute data type {self.compute!r} is unknown: use one of {', '.join(ELEMENT_BYTES)}")

    def reduction(self, elements: float) -> float:
        """Seconds of the reduce-scatter and the all-gather of this many parameters a device."""
        others = self.replicas - 1
        if not others or not elements:
            return 0.0
        bytes = elements * (_GRADIENT + ELEMENT_BYTES[self.compute])
        return 2 * others * self.link_latency + others / self.replicas * bytes / self.link

    def step(self, elements: float) -> float:
        """Seconds of AdamW on a device's share of this many parameters."""
        width = ELEMENT_BYTES[self.compute]
        return elements / self.replicas * (_STEP + (width if width < _GRADIENT else 0)) / self.memory

    def seconds(self, elements: float) -> float:
        """Seconds of both."""
        return self.reduction(elements) + self.step(elements)


def rank_tails(model: Model, partition: Partition, ending: Ending, tensor_parallel: int = 1) -> tuple[float, ...]:
    """Seconds that every rank's devices need after their last backward (a problem's tails)."""
    held = [0] * partition.ranks
    for chunk in partition.chunks:
        module = model.module(chunk.module)
        if not module.frozen:
            layers = module.layers[chunk.start : chunk.stop]
            held[chunk.rank] += sum(parameters(layer, tensor_parallel) for layer in layers)
    return tuple(ending.seconds(elements) for elements in held)
