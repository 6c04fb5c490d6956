"""Model FLOPs of a batch: what its arithmetic needs, whatever the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ds_dip.costs.operations import is_known, operations
from ds_dip.models.spec import Layer, Model, Sizes


def model_flops(model: Model, sizes: Mapping[str, Sizes]) -> float | None:
    """Floating-point operations of forward and backward over these instances, by module.

    A backward costs a forward for the inputs' gradients and one for the weights'; frozen layers need only the former,
    and only where something before them is trained. Recomputation is not counted. None where a layer does not tell
    its operations (see ``operations``).
    """
    total = 0.0
    for module in model.modules:
        if not len(sizes[module.name]):
            continue
        factor = 1 + model.backward(module.name) + (not module.frozen)
        for layer, count in _alike(module.layers):
            if not is_known(layer):
                return None
            total += factor * count * operations(layer, sizes[module.name]).flops
    return total


def _alike(layers: tuple[Layer, ...]) -> list[tuple[Layer, int]]:
    """Layers that count the same, once each with their number: a model has few kinds."""
    counts = Counter((layer.kind, tuple(sorted(layer.options.items()))) for layer in layers)
    kinds = {(layer.kind, tuple(sorted(layer.options.items()))): layer for layer in layers}
    return [(kinds[key], count) for key, count in counts.items()]
