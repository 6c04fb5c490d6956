"""Orders that do not look at durations: list scheduling of equal stages, and interleaved 1F1B."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from ds_dip.scheduling.arrays import Arrays, numbered
from ds_dip.scheduling.columns import Ints
from ds_dip.scheduling.problem import ScheduleError
from ds_dip.scheduling.timing import by_rank, starts

FORWARD, BACKWARD, WEIGHT = 0, 1, 2


class BaselineError(ValueError):
    """A baseline that cannot apply to this problem; the message says why."""


def breadth_first(arrays: Arrays) -> list[list[int]]:
    """All forwards before all backwards, chunk by chunk, in a chunk by first come."""
    sequence = np.lexsort([arrays.priority, arrays.depth, arrays.kind != FORWARD])
    return by_rank(arrays, sequence)


def stages(arrays: Arrays) -> Ints:
    """Numbers shared by the tasks of one kind, module, chunk and rank, shape (n,)."""
    if "stages" not in arrays.cache:
        arrays.cache["stages"] = numbered(arrays.kind, arrays.module, arrays.chunk, arrays.rank)
    return arrays.cache["stages"]  # type: ignore[no-any-return]


def chain(arrays: Arrays, mask: NDArray[np.bool_] | None = None) -> list[list[tuple[int, int]]]:
    """Per rank its forward stages as (place along the chain of all stages, stage number)."""
    number = stages(arrays)
    forward = arrays.kind == FORWARD if mask is None else (arrays.kind == FORWARD) & mask
    depth = np.full(int(number.max(initial=-1)) + 1, -1, dtype=np.int64)
    np.maximum.at(depth, number[forward], arrays.depth[forward])
    rank = np.zeros_like(depth)
    rank[number] = arrays.rank
    place = np.unique(depth[depth >= 0], return_inverse=True)[1].reshape(-1)
    found: list[list[tuple[int, int]]] = [[] for _ in range(arrays.ranks)]
    for where, stage in zip(place.tolist(), np.nonzero(depth >= 0)[0].tolist(), strict=True):
        found[rank[stage]].append((where, stage))
    return [sorted(own) for own in found]


def in_flight(arrays: Arrays, mask: NDArray[np.bool_] | None = None) -> list[int]:
    """How many microbatches 1F1B keeps in flight on every rank: as many as interleaved 1F1B's peak of chunks."""
    own = chain(arrays, mask)
    length = 1 + max((place for places in own for place, _ in places), default=0)
    busy = sum(1 for places in own if places)
    limits = []
    for places in own:
        chunks = length - places[0][0] if places else 1
        if len(places) > 1:
            chunks += max(0, busy - 1 - places[0][0])
        limits.append(max(1, -(-chunks // max(1, len(places)))))
    return limits


def list_order(
    arrays: Arrays,
    priority: Ints,
    limit: list[int],
    mask: NDArray[np.bool_] | None = None,
) -> list[list[int]]:
    """Orders that result when every stage takes one time slot, and a backward follows a forward in turn.

    ``limit`` bounds the microbatches in flight on a rank, admitted in first-come order; ``mask``
    leaves out tasks and their edges.
    """
    from ds_dip.scheduling import listing

    inside = np.ones(arrays.n, dtype=bool) if mask is None else mask
    slot = arrays.rank * 3 + arrays.kind
    word = np.concatenate([[0], np.cumsum((np.bincount(slot, minlength=3 * arrays.ranks) + 63) // 64)])
    order = np.lexsort([priority, arrays.group, slot])
    first = np.searchsorted(slot[order], np.arange(3 * arrays.ranks))
    spot, at = np.empty(arrays.n, dtype=np.int64), np.zeros(64 * int(word[-1]), dtype=np.int64)
    spot[order] = 64 * word[slot[order]] + np.arange(arrays.n) - first[slot[order]]
    at[spot] = np.arange(arrays.n)
    left = np.zeros((arrays.ranks, arrays.groups()), dtype=np.int64)
    np.add.at(left, (arrays.rank[inside], arrays.group[inside]), 1)
    sequence = np.empty(arrays.n, dtype=np.int64)
    rows = (arrays.group, arrays.succ_ptr, arrays.succ, inside, np.array(limit, dtype=np.int64))
    count = listing.list_slots(slot, spot, at, word, *rows, left, sequence)
    if count < np.count_nonzero(inside):
        raise BaselineError("its limit of microbatches in flight blocks itself on this problem's edges")
    return by_rank(arrays, sequence[:count])


def interleaved_order(arrays: Arrays) -> list[list[int]]:
    """Interleaved 1F1B, with the grouping of microbatches that gives the shorter makespan.

    Megatron's groups hold one microbatch a rank and the rest comes last; PyTorch's rounds are of
    nearly equal size.
    """
    own = chain(arrays)
    busy = [places for places in own if places]
    chunks = {len(places) for places in busy}
    if len(chunks) > 1:
        raise BaselineError(f"ranks hold {min(chunks)} to {max(chunks)} chunks; it needs as many on each")
    count = len(set(arrays.microbatch.tolist()))
    depth = len(busy)
    rounds = max(1, count // depth) if depth else 1
    even = [count // rounds + (number < count % rounds) for number in range(rounds)]
    full = [depth] * (count // depth) + [count % depth] * bool(count % depth) if depth else []
    slots = _slots(arrays, own)
    best: tuple[float, list[list[int]]] | None = None
    for sizes in {tuple(full): None, tuple(even): None}:
        orders = [_order(slots, rank, places, sizes, depth) for rank, places in enumerate(own)]
        try:
            makespan = float((starts(arrays, orders) + arrays.duration).max(initial=0.0))
        except ScheduleError:
            continue
        if best is None or makespan < best[0]:
            best = (makespan, orders)
    if best is None:
        raise BaselineError("its order contradicts this placement; loop chunks over ranks")
    return best[1]


Slots = dict[tuple[int, bool, int, int], list[int]]
"""Tasks by (rank, whether backward, virtual stage of the rank, place of the microbatch)."""


def _slots(arrays: Arrays, own: list[list[tuple[int, int]]]) -> Slots:
    number = stages(arrays)
    column = np.full(int(number.max(initial=-1)) + 1, -1, dtype=np.int64)
    for places in own:
        for place, (_, stage) in enumerate(places):
            column[stage] = place
    chunk = numbered(arrays.module, arrays.chunk, arrays.rank)
    virtual = np.full(int(chunk.max(initial=-1)) + 1, -1, dtype=np.int64)
    forward = arrays.kind == FORWARD
    virtual[chunk[forward]] = column[number[forward]]
    alone = np.nonzero(virtual[chunk] < 0)[0]
    if len(alone):
        raise BaselineError(f"task {arrays.id[alone[0]]} has no forward of its chunk on rank {arrays.rank[alone[0]]}")
    order = np.lexsort([arrays.priority, arrays.depth])
    member = np.unique(arrays.microbatch, return_inverse=True)[1].reshape(-1)
    slots: Slots = defaultdict(list)
    rows = (arrays.rank[order], ~forward[order], virtual[chunk[order]], member[order], order)
    for rank, backward, place, microbatch, task in zip(*(row.tolist() for row in rows), strict=True):
        slots[rank, backward, place, microbatch].append(task)
    return slots


def _order(slots: Slots, rank: int, places: list[tuple[int, int]], sizes: tuple[int, ...], depth: int) -> list[int]:
    """One rank's order: warm-up forwards, then a forward and a backward in turn, then the rest."""
    if not places:
        return []
    forward: list[list[int]] = []
    backward: list[list[int]] = []
    first = 0
    for size in sizes:
        for virtual in range(len(places)):
            for member in range(first, first + size):
                forward.append(slots.get((rank, False, virtual, member), []))
                backward.append(slots.get((rank, True, len(places) - 1 - virtual, member), []))
        first += size
    behind = max(0, depth - 1 - places[0][0])
    warm = behind if len(places) == 1 else 2 * behind + (len(places) - 1) * max(sizes)
    warm = min(warm, len(forward))
    order = forward[:warm]
    for ahead, back in zip(forward[warm:], backward, strict=False):
        order += [ahead, back]
    order += backward[len(forward) - warm :]
    return [task for slot in order for task in slot]


def zero_bubble_order(arrays: Arrays) -> list[list[int]]:
    """ZB-H1: 1F1B in which rank r's weight gradients come r microbatches after their backwards."""
    own = chain(arrays)
    if max(map(len, own)) > 1:
        raise BaselineError("ranks hold several chunks; it needs one on each")
    count = len(set(arrays.microbatch.tolist()))
    slots = _slots(arrays, own)
    last = max((places[0][0] for places in own if places), default=0)
    orders = []
    for rank, places in enumerate(own):
        order: list[int] = []
        behind = places[0][0] if places else 0
        for step in range(-(last - behind), count + behind):
            ahead = slots.get((rank, False, 0, step + last - behind), [])
            both = slots.get((rank, True, 0, step), [])
            late = slots.get((rank, True, 0, step - behind), [])
            order += ahead
            order += [task for task in both if arrays.kind[task] != WEIGHT]
            order += [task for task in late if arrays.kind[task] == WEIGHT]
        orders.append(order)
    return orders
