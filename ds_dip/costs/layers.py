"""Whole layers in a latency table: how a row names one, and the instances that a row stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ds_dip.costs.names import LAYER
from ds_dip.costs.operators import LAYER_KINDS, spread_sizes
from ds_dip.costs.table import Row
from ds_dip.models.kinds import PLACEHOLDER, loses
from ds_dip.models.spec import Layer, Model, Sizes

#: Options of a layer that cost nothing (``weights`` only where the kind tells more), and dimensions of a row that tell
#: its instances.
_FREE, _TOLD = ("depth", "rope_theta"), "weights"
_INSTANCES = ("size", "instances", "spread")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A layer whose cost is asked for: equal to every layer that costs the same. ``loss`` if the loss follows it."""

    name: str
    loss: bool
    layer: Layer = field(compare=False)

    @classmethod
    def of(cls, layer: Layer, loss: bool = False) -> Wanted:
        """Of a layer."""
        return cls(_name(layer.kind, tuple(layer.options.items()), loss), loss, layer)


@lru_cache(maxsize=4096)
def _name(kind: str, options: tuple[tuple[str, int], ...], loss: bool) -> str:
    return f"{kind} {sorted(_shape(kind, dict(options), loss).items())}"


def _shape(kind: str, options: Mapping[str, int], loss: bool) -> dict[str, int]:
    free = (*_FREE, _TOLD) if kind in LAYER_KINDS else _FREE
    shape = {key: value for key, value in options.items() if key not in free and not key.startswith(PLACEHOLDER)}
    placeholders = sum(key.startswith(PLACEHOLDER) for key in options)
    return shape | ({"placeholders": placeholders} if placeholders else {}) | ({"loss": 1} if loss else {})


def layer_shape(wanted: Wanted, size: int, instances: int, spread: int) -> dict[str, int]:
    """The shape of a whole layer's row."""
    own = _shape(wanted.layer.kind, wanted.layer.options, wanted.loss)
    return own | {"size": size, "instances": instances, "spread": spread}


def layer_place(row: Row) -> tuple[str, tuple[int, int, int]] | None:
    """The name of the layer that a row measures (see ``Wanted``), and its size, instances, spread; None for others."""
    if not row.name.startswith(LAYER) or not all(key in row.shape for key in _INSTANCES):
        return None
    shape = {key: value for key, value in row.shape.items() if key not in _INSTANCES}
    size, instances, spread = (row.shape[key] for key in _INSTANCES)
    return f"{row.name.removeprefix(LAYER)} {sorted(shape.items())}", (size, instances, spread)


def layer_sizes(layer: Layer, size: int, instances: int, spread: int) -> Sizes:
    """The instances of a whole layer's row (see ``spread_sizes``)."""
    tokens = spread_sizes(size, instances, spread)
    merge = layer.options.get("merge", 1)
    return Sizes(tokens, tuple(size // merge for size in tokens))


def wanted_layers(model: Model) -> Mapping[tuple[str, int], Wanted]:
    """Every layer of a model by module and index."""
    return {
        (module.name, index): Wanted.of(layer, loses(model, module.name, index))
        for module in model.modules
        for index, layer in enumerate(module.layers)
    }
