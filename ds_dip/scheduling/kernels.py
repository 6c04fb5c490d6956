"""The hot loops on fixed orders, compiled by numba without the GIL: re-timing and longest paths.

Importing this module imports numba, so others import it where they use it. Compiled code is cached
next to this file. ``reference`` says the same in plain Python.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ds_dip.scheduling.columns import Floats, Ints
from ds_dip.scheduling.graph import Ints32


@njit(cache=True, nogil=True, boundscheck=False)
def retime(
    duration: Floats,
    pred_ptr: Ints32,
    pred: Ints32,
    pred_delay: Floats,
    head: Floats,
    follow: Floats,
    sequence: Ints32,
    offset: Ints32,
    until: float,
    start: Floats,
    end: Floats,
    scratch: Ints32,
) -> float:
    """Earliest times of changed orders: ``sequence[offset[r]:offset[r+1]]`` is rank r's.

    ``head`` (n,) is the earliest start of a task by what lies outside, ``follow`` (n,) the least
    time between its end and the batch's. Fills ``start`` and
    ``end`` (n,) and returns the makespan; -1 for a cycle; -2, without finishing, as soon as the
    makespan must exceed ``until``. ``scratch`` has n + 3 ranks values.
    """
    ranks = offset.shape[0] - 1
    n = sequence.shape[0]
    place = scratch[:ranks]
    stack = scratch[ranks : 2 * ranks]
    link = scratch[2 * ranks : 3 * ranks]
    waiter = scratch[3 * ranks : 3 * ranks + n]
    for task in range(n):
        end[task] = -1.0
        waiter[task] = -1
    for own in range(ranks):
        place[own] = offset[own]
        stack[own] = own
    top = ranks
    done = 0
    makespan = 0.0
    while top:
        top -= 1
        own = stack[top]
        position = place[own]
        last = offset[own + 1]
        free = end[sequence[position - 1]] if position > offset[own] else 0.0
        while position < last:
            task = sequence[position]
            begin = max(free, head[task])
            blocked = -1
            for edge in range(pred_ptr[task], pred_ptr[task + 1]):
                finish = end[pred[edge]]
                if finish < 0.0:
                    blocked = pred[edge]
                    break
                begin = max(begin, finish + pred_delay[edge])
            if blocked >= 0:
                link[own] = waiter[blocked]
                waiter[blocked] = own
                break
            free = begin + duration[task]
            makespan = max(makespan, free + follow[task])
            if makespan > until:
                return -2.0
            start[task] = begin
            end[task] = free
            position += 1
            woken = waiter[task]
            while woken >= 0:
                stack[top] = woken
                top += 1
                woken = link[woken]
        done += position - place[own]
        place[own] = position
    return makespan if done == n else -1.0


@njit(cache=True, nogil=True, boundscheck=False, fastmath=True)
def retime_many(
    before_ptr: Ints32, before: Ints32, delay: Floats, duration: Floats, tail: Floats, end: Floats, makespan: Floats
) -> None:
    """Re-time one fixed order for many duration vectors at once.

    Tasks are in a topological order of orders and edges; ``before`` are places of predecessors.
    ``duration`` and ``end`` have shape (n, k), ``tail`` (n,), ``makespan`` (k,).
    """
    many = duration.shape[1]
    makespan[:] = 0.0
    for task in range(duration.shape[0]):
        first, last = before_ptr[task], before_ptr[task + 1]
        if last - first == 1:
            one, wait = before[first], delay[first]
            for column in range(many):
                end[task, column] = end[one, column] + wait + duration[task, column]
        elif last - first == 2:
            one, wait = before[first], delay[first]
            other, pause = before[first + 1], delay[first + 1]
            for column in range(many):
                ready = max(end[one, column] + wait, end[other, column] + pause)
                end[task, column] = ready + duration[task, column]
        else:
            for column in range(many):
                ready = 0.0
                for edge in range(first, last):
                    ready = max(ready, end[before[edge], column] + delay[edge])
                end[task, column] = ready + duration[task, column]
        for column in range(many):
            makespan[column] = max(makespan[column], end[task, column] + tail[task])


@njit(cache=True, nogil=True, boundscheck=False)
def reach(topo: Ints, ptr: Ints, to: Ints, delay: Floats, duration: Floats, own: Floats) -> Floats:
    """Longest time before (or, with rows reversed, after) every task: ``own`` (n,) is the least of each."""
    time = own.copy()
    for index in range(topo.shape[0]):
        task = topo[index]
        for edge in range(ptr[task], ptr[task + 1]):
            other = to[edge]
            time[other] = max(time[other], time[task] + duration[task] + delay[edge])
    return time


@njit(cache=True, nogil=True, boundscheck=False)
def longest(
    topo: Ints, at: Ints, ptr: Ints, succ: Ints, delay: Floats, duration: Floats, source: Ints, target: Ints
) -> Floats:
    """Longest time from a source's start to its target's end (0 where no path leads), per pair (k,).

    ``at`` (n,) is every task's place in ``topo``.
    """
    found = np.zeros(source.shape[0])
    time = np.full(topo.shape[0], -1.0)
    for pair in range(source.shape[0]):
        first, final = at[source[pair]], at[target[pair]]
        if first > final:
            continue
        time[source[pair]] = 0.0
        for index in range(first, final):
            task = topo[index]
            if time[task] < 0.0:
                continue
            finish = time[task] + duration[task]
            time[task] = -1.0
            for edge in range(ptr[task], ptr[task + 1]):
                after = succ[edge]
                if at[after] <= final:
                    time[after] = max(time[after], finish + delay[edge])
        if time[target[pair]] >= 0.0:
            found[pair] = time[target[pair]] + duration[target[pair]]
        time[target[pair]] = -1.0
    return found


@njit(cache=True, nogil=True, boundscheck=False)
def preemptive(head: Floats, duration: Floats, tail: Floats) -> float:
    """Jackson's preemptive schedule of one machine, the longest tail first; ``head`` (k,) rises."""
    many = head.shape[0]
    left = duration.copy()
    heap = np.empty(many, dtype=np.int64)
    size = coming = 0
    now = best = 0.0
    while coming < many or size:
        if not size:
            now = max(now, head[coming])
        while coming < many and head[coming] <= now:
            spot = size
            size += 1
            while spot and tail[heap[(spot - 1) >> 1]] < tail[coming]:
                heap[spot] = heap[(spot - 1) >> 1]
                spot = (spot - 1) >> 1
            heap[spot] = coming
            coming += 1
        task = heap[0]
        until = head[coming] if coming < many else np.inf
        if now + left[task] > until:
            left[task] -= until - now
            now = until
            continue
        now += left[task]
        best = max(best, now + tail[task])
        size -= 1
        moved = heap[size]
        spot = 0
        while 2 * spot + 1 < size:
            child = 2 * spot + 1
            if child + 1 < size and tail[heap[child + 1]] > tail[heap[child]]:
                child += 1
            if tail[heap[child]] <= tail[moved]:
                break
            heap[spot] = heap[child]
            spot = child
        heap[spot] = moved
    return best
