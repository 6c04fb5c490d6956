"""The loops of balancing, compiled by numba without the GIL, on whole numbers: every machine finds the same.

Importing this module imports numba, so others import it where they use it. ``work`` is (items, resources), ``memory``
(items,), ``capacity`` bytes of a bucket or 0 for no limit, ``bucket_of`` (items,), ``total`` (buckets, resources) and
``held`` (buckets,) what buckets have.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ds_dip.balancing.problem import Floats, Ints

#: Buckets that are asked at once for an exchange.
_ASKED = 8


@njit(cache=True, nogil=True)
def longest_first(
    work: Ints, memory: Ints, capacity: int, order: Ints, bucket_of: Ints, total: Ints, held: Ints
) -> int:
    """Put items, in ``order``, each where the busiest resource is then least; -1, or the item that no bucket can hold.

    Of equal buckets the one with less work in sum is taken, then the one with fewer items, then the first one: no
    bucket stays empty where there are as many items.
    """
    buckets, resources = total.shape
    count = np.zeros(buckets, np.int64)
    for item in order:
        best, least, sum_of_best = -1, np.int64(0), np.int64(0)
        for bucket in range(buckets):
            if capacity > 0 and held[bucket] + memory[item] > capacity:
                continue
            peak, whole = np.int64(0), np.int64(0)
            for r in range(resources):
                load = total[bucket, r] + work[item, r]
                whole += load
                peak = max(peak, load)
            better = peak < least or (
                peak == least and (whole < sum_of_best or (whole == sum_of_best and count[bucket] < count[best]))
            )
            if best < 0 or better:
                best, least, sum_of_best = bucket, peak, whole
        if best < 0:
            return int(item)
        bucket_of[item] = best
        held[best] += memory[item]
        count[best] += 1
        for r in range(resources):
            total[best, r] += work[item, r]
    return -1


@njit(cache=True, nogil=True)
def improve(
    work: Ints, memory: Ints, capacity: int, bucket_of: Ints, total: Ints, held: Ints, goal: int, budget: int
) -> int:
    """Exchange items between buckets as long as that lowers what is above ``goal``; returns what is left of ``budget``.

    What is above is the sum over buckets and resources of the squares of ``total - goal``. An exchange gives an item of
    the bucket that is furthest above and takes one of another bucket or none. The emptiest buckets are asked first, a
    few at once, and the exchange among them that lowers the sum most is made; where none does, the next bucket has its
    turn. It ends where nothing is above, where no exchange helps, or when ``budget`` pairs of items have been looked
    at. The last item of a bucket may only be swapped.
    """
    items, resources = work.shape
    buckets = total.shape[0]
    # The items of a bucket: a chain from its first one, each item naming the one behind and the one before.
    first = np.full(buckets, -1, np.int64)
    behind = np.full(items, -1, np.int64)
    before = np.full(items, -1, np.int64)
    count = np.zeros(buckets, np.int64)
    for item in range(items - 1, -1, -1):
        _link(first, behind, before, item, bucket_of[item])
        count[bucket_of[item]] += 1
    above = np.zeros(buckets)
    for bucket in range(buckets):
        above[bucket] = _above(total, bucket, goal)
    stuck = np.zeros(buckets, np.bool_)
    while budget > 0:
        fullest = -1
        for bucket in range(buckets):
            if not stuck[bucket] and above[bucket] > 0 and (fullest < 0 or above[bucket] > above[fullest]):
                fullest = bucket
        if fullest < 0:
            return budget
        given, taken, other = -1, -1, -1
        emptiest = np.argsort(total.sum(axis=1), kind="mergesort")
        for start in range(0, buckets, _ASKED):
            asked = emptiest[start : start + _ASKED]
            for bucket in asked:
                budget -= count[fullest] * (count[bucket] + 1)
            given, taken, other = _best_exchange(
                work, memory, capacity, first, behind, total, held, goal, above, fullest, asked, count[fullest] > 1
            )
            if given >= 0 or budget <= 0:
                break
        if given < 0:
            stuck[fullest] = True
            continue
        stuck[:] = False
        for r in range(resources):
            shift = work[given, r] - (work[taken, r] if taken >= 0 else 0)
            total[fullest, r] -= shift
            total[other, r] += shift
        moved = memory[given] - (memory[taken] if taken >= 0 else 0)
        held[fullest] -= moved
        held[other] += moved
        _unlink(first, behind, before, given, fullest)
        _link(first, behind, before, given, other)
        bucket_of[given] = other
        if taken >= 0:
            _unlink(first, behind, before, taken, other)
            _link(first, behind, before, taken, fullest)
            bucket_of[taken] = fullest
        else:
            count[fullest] -= 1
            count[other] += 1
        above[fullest] = _above(total, fullest, goal)
        above[other] = _above(total, other, goal)
    return budget


@njit(cache=True, nogil=True)
def _best_exchange(
    work: Ints,
    memory: Ints,
    capacity: int,
    first: Ints,
    behind: Ints,
    total: Ints,
    held: Ints,
    goal: int,
    above: Floats,
    fullest: int,
    asked: Ints,
    may_move: bool,
) -> tuple[int, int, int]:
    """(item to give, item to take or -1, the other bucket) of those ``asked``; -1 to give where nothing helps."""
    resources = work.shape[1]
    # Less than rounding could make of nothing is no gain: it would go on for ever.
    best, given, taken, other = -1e-9 * above[fullest], -1, -1, -1
    mine = first[fullest]
    while mine >= 0:
        for target in asked:
            # -2: the end. -1: take nothing.
            theirs = -1 if may_move else first[target]
            while target != fullest and theirs > -2:
                change = -above[fullest] - above[target]
                for r in range(resources):
                    shift = work[mine, r] - (work[theirs, r] if theirs >= 0 else 0)
                    mine_above = float(max(0, total[fullest, r] - shift - goal))
                    their_above = float(max(0, total[target, r] + shift - goal))
                    change += mine_above * mine_above + their_above * their_above
                    if change >= best:
                        break
                if change < best:
                    moved = memory[mine] - (memory[theirs] if theirs >= 0 else 0)
                    if capacity == 0 or (held[fullest] - moved <= capacity and held[target] + moved <= capacity):
                        best, given, taken, other = change, mine, theirs, target
                following = behind[theirs] if theirs >= 0 else first[target]
                theirs = following if following >= 0 else -2
        mine = behind[mine]
    return given, taken, other


@njit(cache=True, nogil=True)
def _link(first: Ints, behind: Ints, before: Ints, item: int, bucket: int) -> None:
    behind[item] = first[bucket]
    before[item] = -1
    if first[bucket] >= 0:
        before[first[bucket]] = item
    first[bucket] = item


@njit(cache=True, nogil=True)
def _unlink(first: Ints, behind: Ints, before: Ints, item: int, bucket: int) -> None:
    if before[item] >= 0:
        behind[before[item]] = behind[item]
    else:
        first[bucket] = behind[item]
    if behind[item] >= 0:
        before[behind[item]] = before[item]


@njit(cache=True, nogil=True)
def _above(total: Ints, bucket: int, goal: int) -> float:
    found = 0.0
    for r in range(total.shape[1]):
        excess = float(max(0, total[bucket, r] - goal))
        found += excess * excess
    return found


@njit(cache=True, nogil=True)
def differencing(work: Ints, order: Ints, buckets: int, bucket_of: Ints) -> None:
    """Karmarkar and Karp's largest differencing method over several buckets, on the work of all resources in sum.

    Every item begins as a part of its own, whose buckets are all empty but one. The two parts whose buckets are most
    unlike are joined, the fullest bucket of one with the emptiest of the other, until one part is left. ``order`` has
    the items by falling work.
    """
    items = work.shape[0]
    sums = np.zeros((items, buckets), np.int64)
    # Items of a part's bucket, as a chain from its first to its last one.
    first = np.full((items, buckets), -1, np.int64)
    last = np.full((items, buckets), -1, np.int64)
    following = np.full(items, -1, np.int64)
    spread = np.zeros(items, np.int64)
    for item in range(items):
        for r in range(work.shape[1]):
            sums[item, 0] += work[item, r]
        first[item, 0] = item
        last[item, 0] = item
        spread[item] = sums[item, 0]
    # Parts by falling spread: sorted once, and a joined part is put where it belongs.
    queue = order.copy()
    for head in range(items - 1):
        one, other = queue[head], queue[head + 1]
        rising = np.argsort(sums[other], kind="mergesort")
        falling = np.argsort(-sums[one], kind="mergesort")
        joined = np.zeros(buckets, np.int64)
        starts = np.full(buckets, -1, np.int64)
        ends = np.full(buckets, -1, np.int64)
        for place in range(buckets):
            a, b = falling[place], rising[place]
            joined[place] = sums[one, a] + sums[other, b]
            if first[one, a] < 0:
                starts[place], ends[place] = first[other, b], last[other, b]
            elif first[other, b] < 0:
                starts[place], ends[place] = first[one, a], last[one, a]
            else:
                following[last[one, a]] = first[other, b]
                starts[place], ends[place] = first[one, a], last[other, b]
        sums[one], first[one], last[one] = joined, starts, ends
        spread[one] = joined.max() - joined.min()
        place = head + 1
        while place + 1 < items and spread[queue[place + 1]] > spread[one]:
            queue[place] = queue[place + 1]
            place += 1
        queue[place] = one
    whole = queue[items - 1]
    for bucket in range(buckets):
        item = first[whole, bucket]
        while item >= 0:
            bucket_of[item] = bucket
            item = following[item]
