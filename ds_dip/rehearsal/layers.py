"""The layers of a twin: next to nothing to compute, and gradients that reach every chunk and weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ds_dip.models.context import Context
from ds_dip.models.partition import Partition
from ds_dip.models.spec import FLOATING, Layer, Model


class EmulatedLayer(nn.Module):
    """What the layer's specs say, from one weight and the mean of all that came in."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.specs = layer.output
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Any, context: Context) -> Tensor | tuple[Tensor, ...]:
        """A tensor, or a tuple, of the specs' shapes; only floating ones depend on anything."""
        value: Tensor = self.weight
        for tensor in _tensors(x):
            if tensor.is_floating_point() and tensor.numel():
                value = value + tensor.mean()
        outputs = [
            value.expand(spec.shape(context.sizes)).contiguous()
            if spec.dtype in FLOATING
            else torch.zeros(spec.shape(context.sizes), dtype=getattr(torch, spec.dtype), device=value.device)
            for spec in self.specs
        ]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class Passing(nn.Module):
    """A layer inside of a chunk, which hands on what it gets."""

    def forward(self, x: Any, context: Context) -> Any:
        """What came in."""
        return x


@dataclass(frozen=True)
class _Factory:
    layer: Layer | None

    def __call__(self) -> nn.Module:
        return Passing() if self.layer is None else EmulatedLayer(self.layer)


def emulated_factories(twin: Model, partition: Partition) -> Mapping[str, Sequence[Callable[[], nn.Module]]]:
    """One factory a layer of a twin: where a chunk starts, or the boundary changes, one that computes."""
    starts = {(chunk.module, chunk.start) for chunk in partition.chunks}
    found: dict[str, Sequence[Callable[[], nn.Module]]] = {}
    for module in twin.modules:
        dtypes = [tuple(spec.dtype for spec in layer.output) for layer in module.layers]
        found[module.name] = tuple(
            _Factory(layer if (module.name, index) in starts or dtypes[index] != dtypes[index - 1] else None)
            for index, layer in enumerate(module.layers)
        )
    return found


def emulated_loss(output: Any, context: Context) -> Tensor:  # noqa: ARG001  # a loss is called with both
    """A sum that grows with the outputs, whatever the labels."""
    return torch.stack([tensor.square().sum() for tensor in _tensors(output) if tensor.is_floating_point()]).sum()


def _tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    return [tensor for part in (x.values() if isinstance(x, Mapping) else x) for tensor in _tensors(part)]
