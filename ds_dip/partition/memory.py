"""What a rank must hold beside activations: parameters, gradients, optimizer state, messages, headroom."""

from __future__ import annotations

from dataclasses import dataclass

from ds_dip.costs.parallel import ALONE, TensorParallel
from ds_dip.models.parameters import parameters
from ds_dip.models.partition import Partition
from ds_dip.models.spec import ELEMENT_BYTES, Model, Module

#: Bytes a trained parameter of Adam's two moments, and of the fp32 copy that half precision trains.
_MOMENTS, _MASTER, _FP32 = 8, 4, 4


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a rank and how a run spends it.

    ``bytes`` is what a rank's device has, None for no limit; with ``parallel`` a rank is a group of devices, and all
    bytes are those of each. Weights are in ``compute``, gradients
    are accumulated in fp32, and Adam's state (with the fp32 weights of a run in half precision) is
    shared among ``replicas`` (ZeRO-1). ``link_depth`` messages of the largest size are in flight, and
    ``headroom`` is the share left to the allocator. ``limits`` caps the bytes of activations on every
    rank beside that, as ``dip.memory_gb`` does; empty and None are no limit.
    """

    bytes: float | None = None
    compute: str = "float32"
    replicas: int = 1
    link_depth: int = 4
    headroom: float = 0.05
    limits: tuple[float | None, ...] = ()
    parallel: TensorParallel = ALONE

    def state(self, model: Model, partition: Partition) -> tuple[float, ...]:
        """Bytes of parameters, gradients and optimizer state on every rank."""
        held = [0.0] * partition.ranks
        for chunk in partition.chunks:
            module = model.module(chunk.module)
            layers = module.layers[chunk.start : chunk.stop]
            held[chunk.rank] += self.held(module, sum(parameters(layer, self.parallel.degree) for layer in layers))
        return tuple(held)

    def held(self, module: Module, elements: float) -> float:
        """Bytes of so many parameters of a module, with their gradients and optimizer state."""
        width = ELEMENT_BYTES[self.compute]
        each = float(width)
        if not module.frozen:
            each += _FP32 + (_MOMENTS + (_MASTER if width < _FP32 else 0)) / self.replicas
        return each * elements

    def activations(self, rank: int, state: float, message: float) -> float | None:
        """Bytes for activations on a rank with this state, and messages of at most ``message`` bytes, all devices'.

        Not positive where nothing is left; None without a limit.
        """
        limit = self.limits[rank] if self.limits else None
        if self.bytes is None:
            return limit
        left = self.bytes * (1 - self.headroom) - state - self.link_depth * message / self.parallel.rows
        return left if limit is None else min(left, limit)
