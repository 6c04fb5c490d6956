"""Annealing of per-rank orders, compiled: moves in critical blocks and of whole microbatches.

A state is an order per rank, always acyclic and within memory: a rank's memory depends on its own
order alone. Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ds_dip.scheduling.arrays import Floats
from ds_dip.scheduling.graph import Ints32
from ds_dip.scheduling.kernels import retime
from ds_dip.scheduling.queueing import Words


class Space(NamedTuple):
    """What annealing moves in: tasks (n,), predecessor rows, offsets of ranks in a sequence.

    ``head`` and ``follow`` are the least times from the batch's start to a task's and from its end
    to the batch's; ``base`` (ranks,) is the memory in use before a rank's first task. ``table`` (identities,
    microbatches) holds the task of a microbatch that plays a role (kind, module, chunk, sub), or
    -1; rows run along the chain. ``pair_of`` (n,) is a task's pair or -1, ``pairs`` (k, 3) their
    tasks, ``choice_values[choice_ptr[k]:choice_ptr[k+1]]`` (forward, backward and weight duration,
    memory, backward acquire) their choices. Where tasks are in pairs their own values do not count.
    """

    duration: Floats
    pred_ptr: Ints32
    pred: Ints32
    pred_delay: Floats
    head: Floats
    follow: Floats
    acquire: Floats
    net: Floats
    limit: Floats
    rank: Ints32
    offset: Ints32
    base: Floats
    table: Ints32
    limited: bool
    pair_of: Ints32
    pairs: Ints32
    choice_ptr: Ints32
    choice_values: Floats


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
def choose(s: Space, pair: int, choice: int, duration: Floats, acquire: Floats, net: Floats) -> None:
    """Give a pair's tasks the values of one of its choices."""
    values = s.choice_values[s.choice_ptr[pair] + choice]
    forward, backward, weight = s.pairs[pair]
    duration[forward], acquire[forward], net[forward] = values[0], values[3], values[3]
    duration[backward], acquire[backward] = values[1], values[4]
    if weight >= 0:
        duration[weight] = values[2]
        net[backward], net[weight] = 0.0, -values[3]
    else:
        net[backward] = -values[3]


@njit(cache=True, nogil=True, boundscheck=False)
def fits(
    s: Space, acquire: Floats, net: Floats, sequence: Ints32, level: Floats, first: int, last: int, own: int
) -> bool:
    """Fill ``level`` (use after each place) from ``first`` to ``last`` (exclusive); False where over the limit."""
    use = level[first - 1] if first > s.offset[own] else s.base[own]
    for place in range(first, last):
        task = sequence[place]
        if use + acquire[task] > s.limit[own]:
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
def exchange(s: Space, sequence: Ints32, where: Ints32, one: int, other: int, first: int, last: int) -> None:
    """Swap two microbatches' tasks in the roles ``first`` to ``last`` (exclusive)."""
    for role in range(first, last):
        left, right = s.table[role, one], s.table[role, other]
        if left >= 0 and right >= 0:
            here, there = where[left], where[right]
            sequence[here], sequence[there] = right, left
            where[left], where[right] = there, here


@njit(cache=True, nogil=True, boundscheck=False)
def critical(s: Space, sequence: Ints32, where: Ints32, start: Floats, end: Floats, path: Ints32, state: Words) -> int:
    """One critical path, last task first, into ``path``; returns its length."""
    latest = 0.0
    task = 0
    for candidate in range(sequence.shape[0]):
        value = end[candidate] + s.follow[candidate]
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
        if place > s.offset[s.rank[task]] and end[sequence[place - 1]] >= begin:
            before = sequence[place - 1]
        if before < 0 or draw(state, 4) == 0:
            for edge in range(s.pred_ptr[task], s.pred_ptr[task + 1]):
                if end[s.pred[edge]] + s.pred_delay[edge] >= begin:
                    before = s.pred[edge]
                    break
        if before < 0 or begin <= 0.0:
            return length
        task = before


@njit(cache=True, nogil=True, boundscheck=False)
def block(
    s: Space,
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
        own = s.rank[path[middle]]
        return max(low, s.offset[own]), min(high, s.offset[own + 1] - 1)
    low = high = draw(state, sequence.shape[0])
    own = s.rank[sequence[low]]
    floor, ceiling = s.offset[own], s.offset[own + 1] - 1
    while low > floor and high - low < 20 and end[sequence[low - 1]] >= start[sequence[low]]:
        low -= 1
    while high < ceiling and high - low < 40 and end[sequence[high]] >= start[sequence[high + 1]]:
        high += 1
    if low == high:
        low, high = max(floor, low - 1), min(ceiling, high + 1)
    return low, high


@njit(cache=True, nogil=True, boundscheck=False)
def anneal(
    s: Space,
    sequence: Ints32,
    choices: Ints32,
    best: Ints32,
    best_choices: Ints32,
    evaluations: int,
    hot: float,
    cold: float,
    bound: float,
    swaps: int,
    state: Words,
    ints: Ints32,
    floats: Floats,
) -> tuple[float, int]:
    """Anneal ``sequence`` and ``choices`` in place from temperature ``hot`` to ``cold`` (in time units).

    ``best`` and ``best_choices`` receive the best seen; returns its makespan (-1 if the start is no schedule)
    and the evaluations used, fewer where ``bound`` was reached. ``swaps`` of 1000 moves exchange
    microbatches. Scratch: 3 n + 3 ranks ints, 6 n floats.
    """
    n, ranks = sequence.shape[0], s.offset.shape[0] - 1
    if n == 0:
        return -1.0, 0
    duration, acquire, net = s.duration.copy(), s.acquire.copy(), s.net.copy()
    for pair in range(choices.shape[0]):
        choose(s, pair, choices[pair], duration, acquire, net)
    best_choices[:] = choices
    where, path, room = ints[:n], ints[n : 2 * n], ints[2 * n :]
    start, end = floats[:n], floats[n : 2 * n]
    trial_start, trial_end = floats[2 * n : 3 * n], floats[3 * n : 4 * n]
    level, trial = floats[4 * n : 5 * n], floats[5 * n :]
    for place in range(n):
        where[sequence[place]] = place
        best[place] = sequence[place]
    for own in range(ranks):
        if not fits(s, acquire, net, sequence, level, s.offset[own], s.offset[own + 1], own):
            return -1.0, 0
    trial[:n] = level
    rows = (s.pred_ptr, s.pred, s.pred_delay, s.head, s.follow)
    current = retime(duration, *rows, sequence, s.offset, np.inf, start, end, room)
    if current < 0:
        return current, 0
    record = current
    length = critical(s, sequence, where, start, end, path, state)
    cooling = (cold / hot) ** (1.0 / max(1, evaluations))
    heat = hot
    used = 0
    tries = 0
    wide, many = s.table.shape
    while used < evaluations and tries < 20 * evaluations and record > bound:
        tries += 1
        whole = many > 1 and draw(state, 1000) < swaps
        one = other = first = last = source = target = own = 0
        pair = -1
        if choices.shape[0] and not whole and draw(state, 4) == 0:
            pair = s.pair_of[path[draw(state, length)]] if draw(state, 2) else draw(state, choices.shape[0])
        if pair >= 0:
            many_choices = s.choice_ptr[pair + 1] - s.choice_ptr[pair]
            if many_choices < 2:
                continue
            source = choices[pair]
            target = draw(state, many_choices - 1)
            target += target >= source
            choices[pair] = target
            choose(s, pair, target, duration, acquire, net)
            own = s.rank[s.pairs[pair, 0]]
            possible = True
            if s.limited:
                possible = fits(s, acquire, net, sequence, trial, s.offset[own], s.offset[own + 1], own)
        elif whole:
            one = draw(state, many)
            other = draw(state, many - 1)
            other += other >= one
            first, last = 0, wide
            if draw(state, 2):
                first = draw(state, wide)
                last = first + 1 + draw(state, wide - first)
            exchange(s, sequence, where, one, other, first, last)
            possible = True
            if s.limited:
                for rank in range(ranks):
                    if not fits(s, acquire, net, sequence, trial, s.offset[rank], s.offset[rank + 1], rank):
                        possible = False
                        break
        else:
            low, high = block(s, sequence, where, path, length, start, end, state)
            if low == high:
                continue
            own = s.rank[sequence[low]]
            source = low + draw(state, high - low + 1)
            kind = draw(state, 5)
            if kind < 2:
                source = low if draw(state, 2) else high
                target = low + 1 if source == low else high - 1
            elif kind < 4:
                target = low if draw(state, 2) else high
            else:
                target = low + draw(state, high - low + 1)
            if target == source:
                continue
            shift(sequence, where, source, target)
            possible = True
            if s.limited:
                possible = fits(s, acquire, net, sequence, trial, min(source, target), max(source, target) + 1, own)
        result = -1.0
        if possible:
            used += 1
            heat *= cooling
            chance = (draw(state, 1 << 30) + 1) / (1 << 30)
            until = current - heat * np.log(chance)
            result = retime(duration, *rows, sequence, s.offset, until, trial_start, trial_end, room)
        if result >= 0:
            current = result
            start, trial_start = trial_start, start
            end, trial_end = trial_end, end
            if s.limited:
                if whole or pair >= 0:
                    level[:n] = trial[:n]
                else:
                    for place in range(min(source, target), max(source, target) + 1):
                        level[place] = trial[place]
            length = critical(s, sequence, where, start, end, path, state)
            if current < record * (1 - 1e-12):
                record = current
                best[:] = sequence
                best_choices[:] = choices
        else:
            if pair >= 0:
                choices[pair] = source
                choose(s, pair, source, duration, acquire, net)
                if s.limited:
                    trial[:n] = level[:n]
            elif whole:
                exchange(s, sequence, where, one, other, first, last)
                if s.limited:
                    trial[:n] = level[:n]
            else:
                shift(sequence, where, target, source)
                if s.limited:
                    for place in range(min(source, target), max(source, target) + 1):
                        trial[place] = level[place]
    return record, used
