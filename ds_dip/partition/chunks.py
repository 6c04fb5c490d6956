"""Separated placement: every module over all ranks, in chunks whose slowest is as fast as can be (DIP, offline step 3).

Where layers do not divide by the number of chunks, the bounds come from an exact dynamic program
instead of the paper's L/(P*K).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ds_dip.costs.model import CostModel
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.models.partition import Chunk, Partition, PartitionError, check_partition
from ds_dip.models.spec import Model, Sizes
from ds_dip.partition.bounds import bottleneck_bounds

#: One instance that stands for a module's work where nothing better is known, in tokens.
NOMINAL_TOKENS = 256
#: How the chunks of a module's laps, and of modules that follow each other, go over the ranks.
PLACEMENTS = ("looped", "zigzag")


def make_partition(
    model: Model,
    ranks: int,
    laps: Mapping[str, int] | None = None,
    sub_microbatch: Mapping[str, int | None] | None = None,
    costs: CostModel | None = None,
    *,
    sizes: Mapping[str, Sizes] | None = None,
    parts: Mapping[str, Sequence[int]] | None = None,
    placement: str = "looped",
) -> Partition:
    """Chunks of every module: P*K of them, ``looped`` (the paper's) chunk c on rank c mod P in lap c div P.

    In the placement ``zigzag`` every lap runs against the one before, and a module against the last lap of the one
    it takes outputs of: where the chain turns, two chunks that follow each other are on one rank, and no message is.
    An adapter, which stands between two modules and has fewer layers than there are ranks, is one chunk, on the rank
    whose outputs it takes.
    ``laps`` is K per module (default 1), ``sub_microbatch`` B per module in instances (default: not
    cut). Bounds minimise the slowest chunk's forward and backward under ``costs`` (default: the
    roofline's operation counts) for the instances in ``sizes`` (default: one of 256 tokens).
    ``parts`` gives explicit numbers of layers a chunk for the modules it names, and thereby their K.
    Raises PartitionError, with the numbers and the ways out, where a module cannot be cut so.
    """
    laps, sub_microbatch, sizes, parts = dict(laps or {}), dict(sub_microbatch or {}), sizes or {}, parts or {}
    if ranks < 1:
        raise PartitionError(f"ranks is {ranks}: at least 1 is needed")
    names = [module.name for module in model.modules]
    for what, given in (("laps", laps), ("sub_microbatch", sub_microbatch), ("sizes", sizes), ("parts", parts)):
        if unknown := sorted(set(given) - set(names)):
            raise PartitionError(f"{what} names {', '.join(unknown)}: the model's modules are {', '.join(names)}")
    if placement not in PLACEMENTS:
        raise PartitionError(f"placement is {placement!r}: use one of {', '.join(PLACEMENTS)}")
    costs = costs or Roofline(model, Rates())
    cuts: dict[str, tuple[int, ...]] = {}
    for module in model.modules:
        name, layers = module.name, len(module.layers)
        if name in parts:
            own = 1 if is_adapter(model, name, ranks) else ranks
            bounds = _explicit_bounds(name, layers, own, parts[name], laps.get(name))
        else:
            count = chunk_count(model, name, ranks, laps.get(name, 1))
            nominal = sizes.get(name, Sizes((NOMINAL_TOKENS,), (NOMINAL_TOKENS,)))
            bounds = bottleneck_bounds(layer_seconds(model, name, costs, nominal), count)
        cuts[name] = tuple(bounds)
    homes = chunk_ranks(model, {name: len(own) - 1 for name, own in cuts.items()}, ranks, placement)
    chunks = [
        Chunk(name, index, index // ranks, homes[name][index], start, stop)
        for name, own in cuts.items()
        for index, (start, stop) in enumerate(pairwise(own))
    ]
    partition = Partition(ranks, tuple(chunks), tuple((name, sub_microbatch.get(name)) for name in names))
    check_partition(model, partition)
    return partition


def chunk_ranks(model: Model, chunks: Mapping[str, int], ranks: int, placement: str) -> dict[str, tuple[int, ...]]:
    """The rank of every chunk of every module, of which there are ``chunks`` (see ``make_partition``)."""
    homes: dict[str, tuple[int, ...]] = {}
    turned: dict[str, int] = {}
    for module in model.modules:
        name = module.name
        turns = max((turned[source] for source in model.upstream(name)), default=0)
        if is_adapter(model, name, ranks):
            homes[name], turned[name] = (homes[model.upstream(name)[-1]][-1],) * chunks[name], turns
            continue
        own = []
        for index in range(chunks[name]):
            lap, position = divmod(index, ranks)
            back = placement == "zigzag" and (turns + lap) % 2 == 1
            own.append(ranks - 1 - position if back else position)
        homes[name] = tuple(own)
        turned[name] = turns + -(-chunks[name] // ranks)
    return homes


def layer_seconds(model: Model, module: str, costs: CostModel, sizes: Sizes) -> list[float]:
    """Seconds of each of a module's layers for these instances, forward and, where there is one, backward."""
    seconds = []
    for layer in range(len(model.module(module).layers)):
        where = (module, layer, layer + 1, sizes)
        seconds.append(costs.forward(*where) + (costs.backward(*where) if model.backward(module) else 0.0))
    return seconds


def is_adapter(model: Model, name: str, ranks: int) -> bool:
    """Whether a module stands between two others and has fewer layers than there are ranks."""
    return bool(model.upstream(name) and model.downstream(name)) and len(model.module(name).layers) < ranks


def chunk_count(model: Model, name: str, ranks: int, laps: int) -> int:
    """P*K, 1 for an adapter, or PartitionError with the numbers and the ways out where a module has fewer layers."""
    layers = len(model.module(name).layers)
    if laps == 1 and is_adapter(model, name, ranks):
        return 1
    if laps < 1:
        raise PartitionError(f"laps of {name} is {laps}: at least 1 is needed")
    if layers < ranks * laps:
        fewer_laps, fewer_ranks = f"set its laps to {layers // ranks}", f"use at most {layers} pipeline ranks"
        way = fewer_laps if layers >= ranks else fewer_ranks if laps == 1 else f"{fewer_ranks} with 1 lap"
        raise PartitionError(
            f"module {name} has {layers} layers, but {ranks} ranks x {laps} laps need {ranks * laps} chunks of at "
            f"least one layer: {way}, or give the module more layers"
        )
    return ranks * laps


def _explicit_bounds(name: str, layers: int, ranks: int, part: Sequence[int], laps: int | None) -> tuple[int, ...]:
    if any(size < 1 for size in part) or sum(part) != layers:
        raise PartitionError(
            f"parts of {name} are {list(part)} (sum {sum(part)}), the module has {layers} layers: give at least one "
            f"layer a chunk and {layers} in all"
        )
    if laps is not None and len(part) != ranks * laps:
        raise PartitionError(
            f"parts of {name} has {len(part)} chunks, but {ranks} ranks x {laps} laps are {ranks * laps}: give as "
            "many, or leave out the laps"
        )
    bounds = [0]
    for size in part:
        bounds.append(bounds[-1] + size)
    return tuple(bounds)
