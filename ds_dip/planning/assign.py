"""Which samples run together: balanced replicas, then balanced microbatches (DFLOP, online microbatch scheduler).

The costs are additive per sample and the same in every process, and balancing counts in whole numbers, hence so is the
assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ds_dip.balancing import BalancingError, Loads, balance
from ds_dip.balancing.problem import Floats, in_shares
from ds_dip.costs.model import CostModel, alone_seconds, module_seconds
from ds_dip.data.metadata import SampleMetadata
from ds_dip.models.spec import Model
from ds_dip.planning.cut import sizes_of

#: Samples of a mean microbatch from which on a sample is one of several.
_SEVERAL = 1.5


@dataclass(frozen=True, slots=True)
class Load:
    """What a sample adds to a microbatch: seconds of each module, and bytes on the rank where it holds most."""

    seconds: tuple[float, ...]
    memory: float = 0.0


def loads_of(model: Model, costs: CostModel, each: float) -> Callable[[SampleMetadata], Load]:
    """What samples cost where the mean microbatch holds ``each``: what they add to others, or all of it if alone."""
    if is_alone(each):
        return lambda sample: Load(alone_seconds(model, costs, sizes_of([sample], model)))
    return lambda sample: Load(module_seconds(model, costs, sizes_of([sample], model), busy=True))


def is_alone(each: float) -> bool:
    """Whether samples are mostly alone in their microbatch, where the mean one holds ``each``."""
    return each < _SEVERAL


def assign(
    samples: Sequence[SampleMetadata],
    replicas: int,
    microbatches: int,
    load: Callable[[SampleMetadata], Load],
    *,
    capacity: float | None = None,
    balanced: bool = True,
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Positions in ``samples`` per replica and microbatch.

    Replicas are balanced by the seconds of all modules in sum, microbatches by the sum and by each module's share.
    ``capacity`` are bytes that a microbatch may hold; where no assignment keeps it, it has no say. Not ``balanced``,
    samples go to replicas and microbatches in turn.
    A replica has ``min(microbatches, its samples)`` microbatches and none of them is empty (with fewer samples
    than replicas the last replicas have none); inside one, samples keep the sampler's order, and
    microbatches are ordered by their first sample.
    Raises ValueError where a count is below 1 or a cost is negative or not finite.
    """
    for name, value in (("replicas", replicas), ("microbatches", microbatches)):
        if value < 1:
            raise ValueError(f"{name} is {value}: at least 1 is needed")
    if not samples:
        return ((),) * replicas
    loads = [load(sample) for sample in samples]
    seconds = np.array([own.seconds for own in loads], dtype=np.float64)
    memory = np.array([own.memory for own in loads], dtype=np.float64)
    wrong = ~(np.isfinite(seconds) & (seconds >= 0)).all(axis=1) | ~(np.isfinite(memory) & (memory >= 0))
    if wrong.any():
        position = int(np.argmax(wrong))
        raise ValueError(
            f"sample {samples[position].id!r} costs {seconds[position].tolist()} s and {memory[position]} bytes: costs "
            "must be finite and not negative, check its metadata and the cost model"
        )
    everything = np.arange(len(samples))
    if not balanced:
        return tuple(_in_turn(everything[replica::replicas], microbatches) for replica in range(replicas))
    whole = seconds.sum(axis=1, keepdims=True)
    resources = np.concatenate((in_shares(seconds), in_shares(whole)), axis=1)
    return tuple(
        _groups(resources, memory, capacity, share, microbatches)
        for share in _groups(whole, memory, None, everything, replicas, keep_empty=True)
    )


def _groups(
    seconds: Floats,
    memory: Floats,
    capacity: float | None,
    items: Sequence[int] | np.ndarray,
    buckets: int,
    keep_empty: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """``items`` in buckets of nearly equal load, ordered by their first item; empty ones are last, or left out."""
    chosen = np.asarray(items, dtype=np.int64)
    own = seconds[chosen] if seconds.shape[1] else np.zeros((len(chosen), 1))
    wanted = buckets if keep_empty else min(buckets, len(chosen))
    if not len(chosen):
        return ((),) * buckets if keep_empty else ()
    try:
        found = balance(Loads(own, wanted, None if capacity is None else memory[chosen], capacity))
    except BalancingError:
        found = balance(Loads(own, wanted))
    groups = [tuple(chosen[list(group)].tolist()) for group in found.groups]
    return tuple(sorted(groups, key=lambda group: group[0] if group else len(seconds)))


def _in_turn(items: np.ndarray, buckets: int) -> tuple[tuple[int, ...], ...]:
    count = min(buckets, len(items))
    return tuple(tuple(items[bucket::count].tolist()) for bucket in range(count))
