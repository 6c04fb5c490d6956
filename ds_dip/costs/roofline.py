"""Costs computed from operation counts and rates: right in proportion before anything was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ds_dip.costs.memory import footprint
from ds_dip.costs.operations import Operations, is_known, operations
from ds_dip.costs.operators import LINKS, OPERATORS, Shape, link_bytes
from ds_dip.costs.parallel import ALONE, TensorParallel, check_heads
from ds_dip.models.kinds import loses
from ds_dip.models.spec import ELEMENT_BYTES, Layer, Model, Sizes

#: Operators of a layer, among which its overhead is shared.
OPERATORS_A_LAYER = 12


@dataclass(frozen=True, slots=True)
class Rates:
    """What a rank's device does per second; the defaults are one core of a desktop processor.

    A layer takes ``layer_overhead`` seconds and then the longer of its arithmetic at ``flops`` per
    second and its memory traffic at ``memory`` bytes per second. A backward takes
    ``backward_ratio`` forwards. A transfer takes ``link_latency`` seconds and then its bytes at
    ``link`` bytes per second. ``compute`` is the data type the run trains in.
    """

    flops: float = 2e10
    memory: float = 5e9
    layer_overhead: float = 5e-5
    backward_ratio: float = 2.0
    link: float = 1e9
    link_latency: float = 5e-5
    compute: str = "float32"

    def __post_init__(self) -> None:
        for name in ("flops", "memory", "link"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"rate {name!r} is {value}: give a finite number above 0")
        for name in ("layer_overhead", "backward_ratio", "link_latency"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"rate {name!r} is {value}: give a finite number of at least 0")
        if self.compute not in ELEMENT_BYTES:
            raise ValueError(f"compute data type {self.compute!r} is unknown: use one of {', '.join(ELEMENT_BYTES)}")


@dataclass(frozen=True)
class Roofline:
    """The cost model of a model at some rates.

    With ``parallel`` a rank is a group of devices, and seconds and bytes are those of each. ``guessed`` names the
    layers ``(module, index)`` of a kind whose operations are not known here and whose options say no
    ``flops_per_token``: they count as one unit a token.
    Raises ValueError where heads do not divide among the devices of a rank.
    """

    model: Model
    rates: Rates = field(default_factory=Rates)
    parallel: TensorParallel = ALONE

    def __post_init__(self) -> None:
        check_heads(self.model, self.parallel.degree)

    @property
    def guessed(self) -> tuple[tuple[str, int], ...]:
        """Layers whose cost is a guess."""
        return tuple(
            (module.name, index)
            for module in self.model.modules
            for index, layer in enumerate(module.layers)
            if not is_known(layer)
        )

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the forward of the layers ``start`` to ``stop``."""
        return sum(self.layer(layer, sizes) for layer in self.model.module(module).layers[start:stop])

    def layer(self, layer: Layer, sizes: Sizes) -> float:
        """Seconds of one layer's forward."""
        count = operations(layer, sizes, self.parallel)
        return self._work(count) + self._sums(count.sums)

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the backward; a frozen module computes the gradients of its inputs only, half of the work."""
        if not self.model.backward(module):
            return 0.0
        own = self.model.module(module)
        counts = [operations(layer, sizes, self.parallel) for layer in own.layers[start:stop]]
        work = (0.5 if own.frozen else 1.0) * self.rates.backward_ratio * sum(map(self._work, counts))
        return work + sum(self._sums(count.backward_sums) for count in counts)

    def _work(self, count: Operations) -> float:
        """Seconds of a forward without what devices send each other."""
        traffic = (count.moved + count.weights) * ELEMENT_BYTES[self.rates.compute]
        return self.rates.layer_overhead + max(count.flops / self.rates.flops, traffic / self.rates.memory)

    def _sums(self, elements: tuple[float, ...]) -> float:
        """Seconds of all-reduces among the devices of a rank."""
        if self.parallel.degree == 1:
            return 0.0
        return sum(self.parallel.reduce_seconds(own * ELEMENT_BYTES[self.rates.compute]) for own in elements)

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Bytes kept for the backward; what only lives inside a layer's forward is not counted."""
        own, compute = self.model.module(module), self.rates.compute
        return sum(
            footprint(
                layer,
                sizes,
                compute,
                loss=loses(self.model, module, index),
                frozen=own.frozen,
                parallel=self.parallel,
            ).kept
            for index, layer in enumerate(own.layers[start:stop], start)
        )

    def layer_bytes(self, layer: Layer, sizes: Sizes) -> float:
        """Bytes that one layer keeps."""
        return footprint(layer, sizes, self.rates.compute, parallel=self.parallel).kept

    def transfer(self, bytes: float) -> float:
        """Seconds that ``bytes`` take to another rank; each device of a rank sends its rows over its own port."""
        return self.rates.link_latency + bytes / self.parallel.rows / self.rates.link

    def around(self, kind: str, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of a stage outside of the engine's two marks: none is known."""
        return 0.0

    def iteration(self, makespan: float) -> float:
        """Seconds of a whole iteration of this makespan: nothing is known of what surrounds it."""
        return makespan


def operator_columns(name: str, shape: Shape, rates: Rates) -> tuple[float, float, float, float]:
    """One operator by the roofline: seconds of its forward and the backward's two parts, and bytes kept.

    A link's seconds are the forward's; a collective is a ring's.
    """
    if name in LINKS:
        steps = shape.get("group", 2) - 1
        return steps * rates.link_latency + link_bytes(name, shape) / rates.link, 0.0, 0.0, 0.0
    work, width = OPERATORS[name].work(shape), ELEMENT_BYTES[rates.compute]
    traffic = (work.moved + work.weights) * width
    overhead = rates.layer_overhead / OPERATORS_A_LAYER
    forward = overhead + max(work.flops / rates.flops, traffic / rates.memory)
    backward = 0.0 if name == "optimizer_step" else rates.backward_ratio * forward
    if name in ("embedding", "patch_embedding", "latent_embedding"):
        return forward, 0.0, backward, work.kept * width
    share = 0.5 if work.weights else 0.0
    return forward, backward * (1 - share), backward * share, work.kept * width
