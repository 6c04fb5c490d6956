"""A window of a schedule as a space of its own: what lies before and after it stays as it is.

Annealing a window costs what the window costs, and its objective is the makespan of the whole: tasks
know the earliest start that the past allows and the time that the future needs behind them.
"""

from __future__ import annotations

import numpy as np

from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.columns import Floats, Ints
from ds_dip.scheduling.graph import Ints32, compact_of
from ds_dip.scheduling.mirror import mirrored
from ds_dip.scheduling.space import Space, roles, space_of


def window(arrays: Arrays, sequence: Ints32, first: int, count: int) -> tuple[Space, Ints, Ints32]:
    """The ``count`` tasks that start from the ``first`` on (and those that start with them), without choices.

    Returns it with the places in ``sequence`` of its tasks, rank by rank, and its own sequence:
    its task i is the task at place i.
    """
    whole = space_of(arrays)
    start = _times(arrays, sequence, whole.offset, np.zeros(arrays.n))
    side = mirrored(arrays)
    offset = np.concatenate([[0], np.cumsum(np.diff(whole.offset)[::-1])]).astype(np.int32)
    future = _times(side, sequence[::-1].astype(np.int32), offset, arrays.tail)
    ordered = np.sort(start)
    begin, finish = ordered[first], ordered[min(first + count, arrays.n) - 1]
    places = np.nonzero((start[sequence] >= begin) & (start[sequence] <= finish))[0]
    tasks = sequence[places].astype(np.int64)
    local = np.full(arrays.n, -1, dtype=np.int64)
    local[tasks] = np.arange(len(tasks))
    rank = arrays.rank[tasks]
    counts = np.bincount(rank, minlength=arrays.ranks)
    own = np.concatenate([[0], np.cumsum(counts)])
    head, follow = np.zeros(len(tasks)), arrays.tail[tasks].copy()
    base = np.zeros(arrays.ranks)
    net = arrays.acquire - arrays.release
    end = start + arrays.duration
    for number in range(arrays.ranks):
        if own[number] == own[number + 1]:
            continue
        low, high = int(places[own[number]]), int(places[own[number + 1] - 1]) + 1
        base[number] = net[sequence[whole.offset[number] : low]].sum()
        inside = slice(own[number], own[number + 1])
        if low > whole.offset[number]:
            head[inside] = end[sequence[low - 1]]
        if high < whole.offset[number + 1]:
            after = sequence[high]
            follow[inside] = np.maximum(follow[inside], arrays.duration[after] + future[after])
    source = np.repeat(np.arange(arrays.n), np.diff(arrays.pred_ptr))
    before, delay = arrays.pred, arrays.pred_delay
    entering = (local[source] >= 0) & (local[before] < 0)
    np.maximum.at(head, local[source[entering]], end[before[entering]] + delay[entering])
    leaving = (local[source] < 0) & (local[before] >= 0)
    needed = delay[leaving] + arrays.duration[source[leaving]] + future[source[leaving]]
    np.maximum.at(follow, local[before[leaving]], needed)
    within = np.nonzero((local[source] >= 0) & (local[before] >= 0))[0]
    within = within[np.argsort(local[source[within]], kind="stable")]
    pointer = np.zeros(len(tasks) + 1, dtype=np.int32)
    np.cumsum(np.bincount(local[source[within]], minlength=len(tasks)), out=pointer[1:])
    table = roles(arrays)
    table = np.where(table >= 0, local[table], -1)
    none = np.zeros(0, dtype=np.int32)
    space = Space(
        duration=arrays.duration[tasks],
        pred_ptr=pointer,
        pred=local[before[within]].astype(np.int32),
        pred_delay=delay[within],
        head=head,
        follow=follow,
        acquire=arrays.acquire[tasks],
        net=net[tasks],
        limit=whole.limit,
        rank=rank.astype(np.int32),
        offset=own.astype(np.int32),
        base=base,
        table=table[:, (table >= 0).any(axis=0)].astype(np.int32),
        limited=whole.limited,
        pair_of=np.full(len(tasks), -1, dtype=np.int32),
        pairs=none.reshape(0, 3),
        choice_ptr=np.zeros(1, dtype=np.int32),
        choice_values=np.zeros((0, 5)),
    )
    return space, places, np.arange(len(tasks), dtype=np.int32)


def _times(arrays: Arrays, sequence: Ints32, offset: Ints32, head: Floats) -> Floats:
    """Starts (n,) of a sequence, no earlier than ``head``."""
    from ds_dip.scheduling import kernels

    start, end = np.empty(arrays.n), np.empty(arrays.n)
    room = np.empty(arrays.n + 3 * arrays.ranks, dtype=np.int32)
    compact = compact_of(arrays)._replace(head=head)
    kernels.retime(*compact, np.zeros(arrays.n), sequence, offset, np.inf, start, end, room)
    return start
