"""Re-timing of orders that a move has changed, compiled: only as much of it as the move needs.

A move changes what starts in some span of time. What starts earlier keeps its times; of what starts later
it is known how much time is needed behind it, so most moves that are no good end soon after the span.
Importing this module imports numba.
"""

from __future__ import annotations

from numba import njit

from ds_dip.scheduling.columns import Floats
from ds_dip.scheduling.graph import Ints32


@njit(cache=True, nogil=True, boundscheck=False)
def advance(
    duration: Floats,
    pred_ptr: Ints32,
    pred: Ints32,
    pred_delay: Floats,
    head: Floats,
    follow: Floats,
    rest: Floats,
    crest: Floats,
    sequence: Ints32,
    offset: Ints32,
    early: float,
    late: float,
    until: float,
    old_start: Floats,
    old_end: Floats,
    start: Floats,
    end: Floats,
    order: Ints32,
    scratch: Ints32,
) -> tuple[float, int]:
    """Times of orders that differ from timed ones only among tasks that started from ``early`` to ``late``.

    ``old_start`` and ``old_end`` (n,) are the times before, ``rest`` (n,) the time that the old orders needed
    after every task's end, ``crest`` (n,) by place the largest end plus ``follow`` of its rank so far. Fills
    ``start``, ``end`` and ``order`` (what was timed anew, in a running order), and returns the makespan and how
    many were timed; -1 for a cycle; -2, without finishing, as soon as the makespan must exceed ``until``.
    ``scratch`` has n + 3 ranks values.
    """
    ranks = offset.shape[0] - 1
    n = sequence.shape[0]
    place = scratch[:ranks]
    stack = scratch[ranks : 2 * ranks]
    link = scratch[2 * ranks : 3 * ranks]
    waiter = scratch[3 * ranks : 3 * ranks + n]
    for task in range(n):
        waiter[task] = -1
        start[task] = old_start[task]
        end[task] = old_end[task] if old_start[task] < early else -1.0
    makespan = 0.0
    kept = 0
    for own in range(ranks):
        low, high = offset[own], offset[own + 1]
        while low < high:
            middle = (low + high) >> 1
            if old_start[sequence[middle]] < early:
                low = middle + 1
            else:
                high = middle
        place[own] = low
        stack[own] = own
        kept += low - offset[own]
        if low > offset[own]:
            makespan = max(makespan, crest[low - 1])
    top = ranks
    done = 0
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
            if free + (rest[task] if old_start[task] > late else follow[task]) > until:
                return -2.0, done
            makespan = max(makespan, free + follow[task])
            start[task] = begin
            end[task] = free
            order[done] = task
            done += 1
            position += 1
            woken = waiter[task]
            while woken >= 0:
                stack[top] = woken
                top += 1
                woken = link[woken]
        place[own] = position
    return makespan if kept + done == n else -1.0, done


@njit(cache=True, nogil=True, boundscheck=False)
def settle(
    duration: Floats,
    pred_ptr: Ints32,
    pred: Ints32,
    pred_delay: Floats,
    follow: Floats,
    sequence: Ints32,
    where: Ints32,
    rank: Ints32,
    offset: Ints32,
    end: Floats,
    order: Ints32,
    rest: Floats,
    crest: Floats,
) -> None:
    """Fill ``rest`` and ``crest`` for timed orders; ``order`` (n,) is a running order of all tasks."""
    n = sequence.shape[0]
    rest[:] = follow
    for index in range(n - 1, -1, -1):
        task = order[index]
        needed = duration[task] + rest[task]
        place = where[task]
        if place > offset[rank[task]]:
            before = sequence[place - 1]
            rest[before] = max(rest[before], needed)
        for edge in range(pred_ptr[task], pred_ptr[task + 1]):
            before = pred[edge]
            rest[before] = max(rest[before], needed + pred_delay[edge])
    for own in range(offset.shape[0] - 1):
        top = 0.0
        for place in range(offset[own], offset[own + 1]):
            task = sequence[place]
            top = max(top, end[task] + follow[task])
            crest[place] = top
