"""The paper's rule: B by efficiency, K by latency, and as many layers in every chunk (DIP, offline steps 1 to 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import floor

from ds_dip.costs.model import CostModel
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model, Sizes
from ds_dip.partition.bounds import even_bounds
from ds_dip.partition.chunks import chunk_count, is_adapter, make_partition
from ds_dip.partition.workload import Workload, typical

#: The share of a module's peak efficiency that the rule's sub-microbatch reaches.
EFFICIENCY = 0.95


def sub_microbatch_sizes(most: int) -> tuple[int, ...]:
    """The sizes that are profiled and searched: 1, 2, 3, 4, 6, 8, 12, 16, 24, … up to ``most`` instances."""
    sizes = {1}
    power = 2
    while power <= most:
        sizes |= {power, power * 3 // 2}
        power *= 2
    return tuple(sorted(size for size in sizes if size <= most))


def efficient_size(model: Model, module: str, costs: CostModel, workload: Workload, sizes: Sequence[int]) -> int:
    """B: the smallest of ``sizes`` with at least 95 % of the best instances per second among them."""
    rates = {
        size: _rate(size, module_seconds(model, module, costs, typical(model, module, workload, size)))
        for size in sizes
    }
    return min(size for size, rate in rates.items() if rate >= EFFICIENCY * max(rates.values()))


def module_seconds(model: Model, module: str, costs: CostModel, sizes: Sizes) -> float:
    """Seconds of a whole module, forward and, where there is one, backward."""
    where = (module, 0, len(model.module(module).layers), sizes)
    return costs.forward(*where) + (costs.backward(*where) if model.backward(module) else 0.0)


def rule_laps(seconds: Mapping[str, float], layers: Mapping[str, int], ranks: int) -> dict[str, int]:
    """K: how often a module takes as long as the shortest one, at most what its layers allow."""
    shortest = min((own for own in seconds.values() if own > 0), default=0.0)
    return {
        name: max(1, min(floor(own / shortest * (1 + 1e-9)), layers[name] // ranks)) if shortest else 1
        for name, own in seconds.items()
    }


def rule_partition(
    model: Model, ranks: int, costs: CostModel, workload: Workload, most: Mapping[str, int]
) -> Partition:
    """The partition that the rule gives; ``most`` is the largest number of instances a microbatch holds, by module.

    A module that takes another one's outputs is never cut: its latency is that of a mean microbatch.
    Raises PartitionError where a module has fewer layers than ranks.
    """
    limits: dict[str, int | None] = {}
    seconds: dict[str, float] = {}
    microbatches = sum(min(workload.microbatches * workload.replicas, len(batch)) for batch in workload.batches)
    for module in model.modules:
        name, size = module.name, None
        if not model.upstream(name) and most[name]:
            size = efficient_size(model, name, costs, workload, sub_microbatch_sizes(most[name]))
        limits[name] = size
        instances = sum(len(sample.modules.get(name, ())) for batch in workload.batches for sample in batch)
        at = typical(model, name, workload, size or max(1, round(instances / microbatches)))
        # What is done in one place, as an adapter is, is no measure of how often others go round.
        alone = is_adapter(model, name, ranks)
        seconds[name] = module_seconds(model, name, costs, at) if len(at) and not alone else 0.0
    layers = {module.name: len(module.layers) for module in model.modules}
    laps = rule_laps(seconds, layers, ranks)
    parts = {name: even_parts(model, name, ranks, laps[name]) for name in layers}
    return make_partition(model, ranks, laps, limits, costs, parts=parts)


def even_parts(model: Model, name: str, ranks: int, laps: int) -> list[int]:
    """Layers a chunk, as equal as they can be; PartitionError where there are fewer layers than chunks."""
    bounds = even_bounds(len(model.module(name).layers), chunk_count(model, name, ranks, laps))
    return [after - before for before, after in pairwise(bounds)]


def _rate(size: int, seconds: float) -> float:
    return size / seconds if seconds > 0 else float("inf")
