"""Moves of annealing, compiled: what may change in the orders of ranks, and where it pays.

Functions take arrays one by one: handing over a tuple of them costs more than most of these do.
Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ds_dip.scheduling.columns import Floats
from ds_dip.scheduling.graph import Ints32
from ds_dip.scheduling.queueing import Words


@njit(cache=True, nogil=True, boundscheck=False)
def draw(state: Words, bound: int) -> Any:
    """A pseudo-random integer below ``bound``, at most 2**32 (xorshift64*)."""
    word = state[0]
    word ^= word >> np.uint64(12)
    word ^= word << np.uint64(25)
    word ^= word >> np.uint64(27)
    state[0] = word
    high = (word * np.uint64(2685821657736338717)) >> np.uint64(32)
    return np.int64((high * np.uint64(bound)) >> np.uint64(32))


@njit(cache=True, nogil=True, boundscheck=False)
def choose(
    pairs: Ints32,
    choice_ptr: Ints32,
    choice_values: Floats,
    pair: int,
    choice: int,
    duration: Floats,
    acquire: Floats,
    net: Floats,
) -> None:
    """Give a pair's tasks the values of one of its choices."""
    values = choice_values[choice_ptr[pair] + choice]
    forward, backward, weight = pairs[pair]
    duration[forward], acquire[forward], net[forward] = values[0], values[3], values[3]
    duration[backward], acquire[backward] = values[1], values[4]
    if weight >= 0:
        duration[weight] = values[2]
        net[backward], net[weight] = 0.0, -values[3]
    else:
        net[backward] = -values[3]


@njit(cache=True, nogil=True, boundscheck=False)
def fits(
    limit: float, before: float, acquire: Floats, net: Floats, sequence: Ints32, level: Floats, first: int, last: int
) -> bool:
    """Fill ``level`` (use after each place) from ``first`` to ``last`` (exclusive); False where over the limit.

    ``before`` is the use ahead of ``first``.
    """
    use = before
    for place in range(first, last):
        task = sequence[place]
        if use + acquire[task] > limit:
            return False
        use += net[task]
        level[place] = use
    return True


@njit(cache=True, nogil=True, boundscheck=False)
def shift(sequence: Ints32, where: Ints32, source: int, target: int) -> None:
    """Move the task at place ``source`` to place ``target``, those between one place aside."""
    task = sequence[source]
    step = 1 if target > source else -1
    for place in range(source, target, step):
        sequence[place] = sequence[place + step]
        where[sequence[place]] = place
    sequence[target] = task
    where[task] = target


@njit(cache=True, nogil=True, boundscheck=False)
def exchange(
    table: Ints32, sequence: Ints32, where: Ints32, one: int, other: int, first: int, last: int, start: Floats
) -> tuple[float, float]:
    """Swap two microbatches' tasks in the roles ``first`` to ``last`` (exclusive).

    Returns the earliest and the latest ``start`` of what was swapped.
    """
    early, late = np.inf, -np.inf
    for role in range(first, last):
        left, right = table[role, one], table[role, other]
        if left >= 0 and right >= 0:
            here, there = where[left], where[right]
            sequence[here], sequence[there] = right, left
            where[left], where[right] = there, here
            early = min(early, start[left], start[right])
            late = max(late, start[left], start[right])
    return early, late


@njit(cache=True, nogil=True, boundscheck=False)
def critical(
    pred_ptr: Ints32,
    pred: Ints32,
    pred_delay: Floats,
    follow: Floats,
    rank: Ints32,
    offset: Ints32,
    sequence: Ints32,
    where: Ints32,
    start: Floats,
    end: Floats,
    path: Ints32,
    state: Words,
) -> int:
    """One critical path, last task first, into ``path``; returns its length."""
    latest = 0.0
    task = 0
    for candidate in range(sequence.shape[0]):
        value = end[candidate] + follow[candidate]
        if value > latest or (value == latest and end[candidate] > end[task]):
            latest = value
            task = candidate
    length = 0
    while True:
        path[length] = task
        length += 1
        place = where[task]
        begin = start[task]
        before = -1
        if place > offset[rank[task]] and end[sequence[place - 1]] >= begin:
            before = sequence[place - 1]
        if before < 0 or draw(state, 4) == 0:
            for edge in range(pred_ptr[task], pred_ptr[task + 1]):
                if end[pred[edge]] + pred_delay[edge] >= begin:
                    before = pred[edge]
                    break
        if before < 0 or begin <= 0.0:
            return length
        task = before


@njit(cache=True, nogil=True, boundscheck=False)
def block(
    rank: Ints32,
    offset: Ints32,
    sequence: Ints32,
    where: Ints32,
    path: Ints32,
    length: int,
    start: Floats,
    end: Floats,
    state: Words,
) -> tuple[int, int]:
    """First and last place of a block on one rank: critical tasks, or (1 in 16) any without idle time.

    Only moves to the border of a critical block can shorten the schedule at once.
    """
    if draw(state, 16):
        middle = draw(state, length)
        first = last = middle
        while first + 1 < length and where[path[first + 1]] == where[path[first]] - 1:
            first += 1
        while last > 0 and where[path[last - 1]] == where[path[last]] + 1:
            last -= 1
        low, high = where[path[first]], where[path[last]]
        own = rank[path[middle]]
        return max(low, offset[own]), min(high, offset[own + 1] - 1)
    low = high = draw(state, sequence.shape[0])
    own = rank[sequence[low]]
    floor, ceiling = offset[own], offset[own + 1] - 1
    while low > floor and high - low < 20 and end[sequence[low - 1]] >= start[sequence[low]]:
        low -= 1
    while high < ceiling and high - low < 40 and end[sequence[high]] >= start[sequence[high + 1]]:
        high += 1
    if low == high:
        low, high = max(floor, low - 1), min(ceiling, high + 1)
    return low, high
