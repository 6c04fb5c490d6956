"""Which samples run together: balanced replicas, then balanced microbatches (DFLOP, online microbatch scheduler).

Longest first into the least loaded bucket, then moves and swaps out of the fullest bucket. The
costs are additive per sample and the same in every process, hence so is the assignment.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from ds_dip.data.metadata import SampleMetadata

#: Moves and swaps per bucket after which the improvement stops; LPT is close, so few are ever made.
_ROUNDS = 32


def assign(
    samples: Sequence[SampleMetadata],
    replicas: int,
    microbatches: int,
    cost: Callable[[SampleMetadata], float],
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Positions in ``samples`` per replica and microbatch.

    ``cost`` is a sample's load in seconds (any additive unit does). A replica has
    ``min(microbatches, its samples)`` microbatches and none of them is empty (with fewer samples
    than replicas the last replicas have none); inside one, samples keep the sampler's order, and
    microbatches are ordered by their first sample.
    Raises ValueError where a count is below 1 or a cost is negative or not finite.
    """
    for name, value in (("replicas", replicas), ("microbatches", microbatches)):
        if value < 1:
            raise ValueError(f"{name} is {value}: at least 1 is needed")
    loads = np.array([cost(sample) for sample in samples], dtype=np.float64)
    if not (np.isfinite(loads) & (loads >= 0)).all():
        position = int(np.argmin(np.isfinite(loads) & (loads >= 0)))
        raise ValueError(
            f"sample {samples[position].id!r} costs {loads[position]} s: costs must be finite and not negative, "
            "check its metadata and the cost model"
        )
    everything = np.arange(len(samples))
    shares = balance(loads, everything, replicas)
    shares += [()] * (replicas - len(shares))
    return tuple(tuple(balance(loads, np.array(share), microbatches)) if share else () for share in shares)


def balance(loads: np.ndarray, items: np.ndarray, buckets: int) -> list[tuple[int, ...]]:
    """Split ``items`` (positions in ``loads``) into ``buckets`` of nearly equal load.

    Fewer items than buckets give fewer buckets, an item each. Buckets are ordered by their first
    item, and items inside one ascend.
    """
    groups = _longest_first(loads, items, min(buckets, len(items)))
    _improve(loads, groups)
    return sorted(tuple(sorted(group)) for group in groups)


def _longest_first(loads: np.ndarray, items: np.ndarray, buckets: int) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in range(buckets)]
    heap = [(0.0, 0, bucket) for bucket in range(buckets)]
    for item in sorted(items.tolist(), key=lambda i: (-loads[i], i)):
        total, count, least = heap[0]
        groups[least].append(item)
        heapq.heapreplace(heap, (total + float(loads[item]), count + 1, least))
    return groups


def _improve(loads: np.ndarray, groups: list[list[int]]) -> None:
    """Take work out of the fullest bucket by the best move or swap, as long as that lowers it."""
    if len(groups) < 2:
        return
    for _ in range(_ROUNDS * len(groups)):
        # Exactly rounded sums: the same on every machine, whatever its vector units.
        totals = np.array([math.fsum(loads[group]) for group in groups])
        fullest = int(np.argmax(totals))
        best = _best_exchange(loads, groups, totals, fullest)
        if best is None:
            return
        other, given, taken = best
        groups[fullest].remove(given)
        groups[other].append(given)
        if taken is not None:
            groups[other].remove(taken)
            groups[fullest].append(taken)
        groups[fullest].sort()
        groups[other].sort()


def _best_exchange(
    loads: np.ndarray, groups: list[list[int]], totals: np.ndarray, fullest: int
) -> tuple[int, int, int | None] | None:
    """(other bucket, item to give, item to take or None) with the lowest larger load of the two."""
    mine = np.array(groups[fullest])
    ceiling = totals[fullest] * (1 - 1e-12)
    best: tuple[float, int, int, int | None] | None = None
    for other, group in enumerate(groups):
        if other == fullest:
            continue
        theirs = np.array(group)
        # A column of zeros stands for taking nothing: a move. The last item of a bucket may only be swapped.
        back = loads[theirs] if len(mine) == 1 else np.append(loads[theirs], 0.0)
        shift = loads[mine][:, None] - back[None, :]
        peak = np.maximum(totals[fullest] - shift, totals[other] + shift)
        give, take = np.unravel_index(int(np.argmin(peak)), peak.shape)
        if peak[give, take] < ceiling and (best is None or peak[give, take] < best[0]):
            taken = int(theirs[take]) if take < len(theirs) else None
            best = (float(peak[give, take]), other, int(mine[give]), taken)
    return None if best is None else best[1:]
