"""DeepSpeed's ``partition_method`` for every module by itself: by layers, by parameters, by kind of layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise

from ds_dip.models.parameters import parameters
from ds_dip.models.partition import Partition, PartitionError
from ds_dip.models.spec import Layer, Model
from ds_dip.partition.bounds import bottleneck_bounds, even_bounds
from ds_dip.partition.chunks import chunk_count, make_partition

#: The method that needs more than the model: K, B and bounds by costs and data (see ``search``).
PROFILE = "profile"
METHODS = ("uniform", "parameters", "type:REGEX", PROFILE)
_TYPE = "type:"
#: Weights of a layer by the method; None gives equal numbers of layers.
_WEIGHTS: Mapping[str, Callable[[Layer], float] | None] = {"uniform": None, "parameters": parameters}


def partition_by(
    method: str,
    model: Model,
    ranks: int,
    laps: Mapping[str, int] | None = None,
    sub_microbatch: Mapping[str, int | None] | None = None,
    placement: str = "looped",
) -> Partition:
    """A partition whose bounds are found by a method of DeepSpeed's, with K, B and the placement as given.

    ``uniform`` gives chunks equal numbers of layers; ``parameters`` the least largest number of
    parameters, which DeepSpeed's own balance misses; ``type:REGEX`` the least largest number of layers
    whose kind matches, without regard to case, and equal numbers in modules without any.
    Raises PartitionError for another method, a wrong expression, or a kind that no module has.
    """
    if method.lower().startswith(_TYPE):
        weigh: Callable[[Layer], float] | None = _kinds(method, model)
    elif method.lower() in _WEIGHTS:
        weigh = _WEIGHTS[method.lower()]
    else:
        raise PartitionError(f"partition_method is {method!r}: use one of {', '.join(METHODS)}")
    laps = laps or {}
    parts = {}
    for module in model.modules:
        count = chunk_count(model, module.name, ranks, laps.get(module.name, 1))
        weights = [] if weigh is None else [weigh(layer) for layer in module.layers]
        bounds = bottleneck_bounds(weights, count) if any(weights) else even_bounds(len(module.layers), count)
        parts[module.name] = [stop - start for start, stop in pairwise(bounds)]
    return make_partition(model, ranks, None, sub_microbatch, parts=parts, placement=placement)


def _kinds(method: str, model: Model) -> Callable[[Layer], float]:
    """Weighs layers whose kind matches by 1, others by 0."""
    try:
        wanted = re.compile(method[len(_TYPE) :], re.IGNORECASE)
    except re.error as error:
        raise PartitionError(f"partition_method is {method!r}, whose expression is wrong: {error}") from error
    kinds = dict.fromkeys(layer.kind for module in model.modules for layer in module.layers)
    if not any(map(wanted.search, kinds)):
        raise PartitionError(f"partition_method is {method!r}, and the model has only {', '.join(kinds)}: name one")
    return lambda layer: float(wanted.search(layer.kind) is not None)
