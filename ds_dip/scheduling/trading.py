"""Bounds on ranks whose stages hold memory, and trade it for time: work and memory under one choice a pair for both.

Both are Lagrangian relaxations: with a price on memory the best choice of each pair is its own matter, so every price
gives a bound, and the best price is sought. Stages without a choice count as pairs with one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ds_dip.scheduling.admission import SLACK
from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.columns import Bools, Floats, Ints
from ds_dip.scheduling.lifetimes import grouped, lifetimes

#: Steps of a search for the best price.
STEPS = 24


@dataclass(frozen=True, eq=False)
class Holders:
    """Stages that hold memory from one task to another, a row each and a column a choice.

    ``first`` and ``last`` (k,) are those tasks, ``middle`` (k,) one between or -1. ``seconds`` (3, k, choices) are of
    first, middle and last, infinite where there is no such choice; ``memory`` (k, choices) is held, ``passing``
    (k, choices) is memory x time beside it. ``residence`` (k, choices) is the least time that it is held.
    """

    first: Ints
    middle: Ints
    last: Ints
    seconds: Floats
    memory: Floats
    passing: Floats
    residence: Floats

    def of(self, rows: Bools) -> Holders:
        """Some of the rows."""
        return Holders(
            self.first[rows],
            self.middle[rows],
            self.last[rows],
            self.seconds[:, rows],
            self.memory[rows],
            self.passing[rows],
            self.residence[rows],
        )


def trade_bounds(arrays: Arrays, least: Arrays, head: Floats, tail: Floats, known: float) -> tuple[float, float]:
    """(by memory x time, by the ends of the batch): the largest bound of any rank, 0 without a limit.

    ``least`` are the arrays with the least of every value, ``head`` and ``tail`` (n,) theirs, ``known`` a bound.

    *Memory x time.* Between a rank's least head and tail its work must fit, and memory x residence over the capacity;
    so must any mean of the two.
    *Ends.* Until a task that gives memory back can start on a rank, it keeps all that it takes, and that must fit; so
    must what it still holds when the last task that takes memory has ended. The work of either end is limited by that.
    """
    if np.isinf(arrays.capacity).all():
        return 0.0, 0.0
    loose = _without_pairs(least)
    holders, areas = _holders(arrays, least, loose)
    counted = np.zeros(arrays.n, dtype=bool)
    for tasks in (holders.first, holders.last, holders.middle[holders.middle >= 0]):
        counted[tasks] = True
    gives, takes = loose.release > loose.acquire, loose.acquire > loose.release
    paired = arrays.pairs
    gives[np.where(paired[:, 2] >= 0, paired[:, 2], paired[:, 1])] = True
    takes[paired[:, 0]] = True
    area = ends = 0.0
    for rank in range(arrays.ranks):
        own, capacity = arrays.rank == rank, float(arrays.capacity[rank]) * (1 + SLACK)
        mine = holders.of(own[holders.first])
        if np.isinf(capacity) or capacity <= 0 or not len(mine.first):
            continue
        around = float(head[own].min()), float(tail[own].min())
        area = max(area, sum(around) + _mean(mine, least.duration[own & ~counted].sum(), areas[rank], capacity))
        edges = float(head[own & gives].min()), float(tail[own & takes].min())
        # Both ends must not overlap: the batch is known to take as long as they do.
        edges = edges[0], max(around[1], min(edges[1], max(known, area, ends) - edges[0]))
        if sum(edges) <= max(known, area, ends):
            sides = head < edges[0], tail < edges[1]
            ends = max(ends, _ends(mine, least, own & ~counted, sides, around, edges, capacity))
    return area, ends


def _without_pairs(least: Arrays) -> Arrays:
    """The arrays without the memory of pairs."""
    acquire, release = least.acquire.copy(), least.release.copy()
    members = least.pairs[least.pairs >= 0]
    acquire[members] = release[members] = 0.0
    return replace(least, acquire=acquire, release=release, cache={})


def _holders(arrays: Arrays, least: Arrays, loose: Arrays) -> tuple[Holders, Floats]:
    """All pairs, and of the other stages those that hold memory from one task of their own to another.

    With it memory x time of all else, by rank.
    """
    from ds_dip.scheduling import kernels

    pairs = arrays.problem.pairs
    most = max([1, *(len(pair.choices) for pair in pairs)])
    source, target, mass = lifetimes(loose)
    plain = (source != target) & (mass > 0)
    for ends in (source, target):
        plain &= np.bincount(ends, plain, minlength=arrays.n)[ends] == 1
    plain &= ~np.isin(source, target[plain])
    order, at = grouped(least)
    graph = least.succ_ptr, least.succ, least.succ_delay, least.duration
    time = kernels.longest(order, at, *graph, source[~plain], target[~plain])
    areas = np.bincount(arrays.rank[source[~plain]], mass[~plain] * time, minlength=arrays.ranks).astype(np.float64)
    source, target, mass = source[plain], target[plain], mass[plain]
    count = len(pairs) + len(source)
    seconds = np.full((3, count, most), np.inf)
    memory, passing = np.zeros((count, most)), np.zeros((count, most))
    for row, pair in enumerate(pairs):
        for column, own in enumerate(pair.choices):
            weight = own.weight_duration or 0.0
            spent = (0.0, own.backward_duration) if pair.weight is None else (own.backward_duration, weight)
            seconds[:, row, column] = own.forward_duration, *spent
            memory[row, column] = own.memory
            passing[row, column] = own.backward_acquire * own.backward_duration
    members = arrays.pairs
    has_weight = members[:, 2] >= 0
    first = np.concatenate([members[:, 0], source])
    last = np.concatenate([np.where(has_weight, members[:, 2], members[:, 1]), target])
    middle = np.concatenate([np.where(has_weight, members[:, 1], -1), np.full(len(source), -1)])
    rest = slice(len(pairs), None)
    seconds[0, rest, 0], seconds[1, rest, 0], seconds[2, rest, 0] = least.duration[source], 0.0, least.duration[target]
    memory[rest, 0] = mass
    shortest = kernels.longest(order, at, *graph, first, last)
    with np.errstate(invalid="ignore"):
        more = seconds[0] - least.duration[first][:, None] + seconds[2] - least.duration[last][:, None]
    residence = np.where(np.isfinite(more), shortest[:, None] + more, 0.0)
    return Holders(first, middle, last, seconds, memory, passing, residence), areas


def _mean(mine: Holders, work: float, area: float, capacity: float) -> float:
    """The best mean of work, and memory x time over the capacity: ``work`` and ``area`` are of the other tasks."""
    spent = mine.seconds.sum(axis=0)
    held = np.where(np.isfinite(spent), (mine.memory * mine.residence + mine.passing) / capacity, 0.0)

    def value(share: float) -> float:
        one = (1 - share) * np.where(np.isfinite(spent), spent, 0.0) + share * held
        least = np.where(np.isfinite(spent), one, np.inf).min(axis=1).sum()
        return float((1 - share) * work + share * area / capacity + least)

    return _highest(value, 1.0)[1]


def _ends(
    mine: Holders,
    least: Arrays,
    others: Bools,
    sides: tuple[Bools, Bools],
    around: tuple[float, float],
    edges: tuple[float, float],
    capacity: float,
) -> float:
    """A bound by what fits into the ends, which last until ``edges`` (seconds from the start, and to the end).

    ``sides`` (n,) are the tasks that may run there, which a rank begins no earlier than ``around`` says. ``others``
    (n,) hold nothing: only the ends' time limits them. Prices are on memory, and on time as a share of it.
    """
    early, late = sides
    free = least.duration[others]
    valid = np.isfinite(mine.seconds[0])
    seconds = np.where(valid, mine.seconds, 0.0)
    opening, closing = early[mine.first][:, None], late[mine.last][:, None]
    lengths = np.array([edges[0] - around[0], edges[1] - around[1]])

    def value(prices: Floats) -> float:
        memory, time = prices[:2], prices[2:]
        cheapest = np.minimum(np.where(early, time[0], 1.0), np.where(late, time[1], 1.0))
        begin, turn, end = seconds
        begin = np.where(opening, np.minimum(begin, time[0] * begin + memory[0] * mine.memory), begin)
        end = np.where(closing, np.minimum(end, time[1] * end + memory[1] * mine.memory), end)
        turn = turn * np.where(mine.middle >= 0, cheapest[mine.middle], 0.0)[:, None]
        spent = np.where(valid, begin + turn + end, np.inf).min(axis=1).sum()
        limits = sum(edges) - float(time @ lengths) - memory.sum() * capacity
        return float(spent + (free * cheapest[others]).sum() + limits)

    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.where(valid & (mine.memory > 0), mine.seconds[[0, 2]] / mine.memory, 0.0)
    most = rates[0].max(), rates[1].max(), 1.0, 1.0
    prices = np.array([0.0, 0.0, 1.0, 1.0])
    best = value(prices)
    # A price on an end's memory first, where its time costs nothing, then what its time is worth beside that.
    for end in (1, 0):
        for axis, time in ((end, 0.0), (end + 2, None)):
            start = prices.copy()
            if time is not None:
                start[end + 2] = time

            def along(price: float, axis: int = axis, start: Floats = start) -> float:
                return value(np.where(np.arange(4) == axis, price, start))

            price, at = _highest(along, most[axis])
            if at > best:
                best, prices = at, np.where(np.arange(4) == axis, price, start)
    return best


def _highest(value: Callable[[float], float], most: float) -> tuple[float, float]:
    """Where between 0 and ``most`` a concave function is highest, about, and its value there."""
    golden = (5**0.5 - 1) / 2
    low, high = 0.0, most
    one, other = high - golden * (high - low), low + golden * (high - low)
    at_one, at_other = value(one), value(other)
    best = max([(0.0, value(0.0)), (most, value(most)), (one, at_one), (other, at_other)], key=lambda own: own[1])
    for _ in range(STEPS):
        if at_one < at_other:
            low, one, at_one = one, other, at_other
            other = low + golden * (high - low)
            at_other = value(other)
            best = max(best, (other, at_other), key=lambda own: own[1])
        else:
            high, other, at_other = other, one, at_one
            one = high - golden * (high - low)
            at_one = value(one)
            best = max(best, (one, at_one), key=lambda own: own[1])
    return best
