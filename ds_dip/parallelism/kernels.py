"""The loop that simulates a group of pipelines, compiled by numba without the GIL.

Importing this module imports numba, so others import it where they use it. A microbatch goes forward along a path of
stages and back again; a stage of a microbatch has a rank, seconds of its forward and backward, and the seconds of the
message behind it. This is the dual-queue interleaving (DIP, online step 4) with whole microbatches admitted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def simulate(
    forward: Floats,
    backward: Floats,
    delay: Floats,
    rank: Ints,
    entry: int,
    replica: Ints,
    replicas: int,
    admitted: int,
    entered: int,
    busy: Floats,
    end: Floats,
) -> tuple[int, int]:
    """Seconds that every rank works (``busy``) and its last ``end``; the most microbatches that were in flight.

    ``forward``, ``backward``, ``delay`` and ``rank`` are (microbatches, stages); a stage that is not there takes -1.
    From stage ``entry`` on a microbatch is in its ``replica`` of the backbone. At most ``admitted`` microbatches are
    in flight, and ``entered`` in each replica; the result says how many were, of all and of the fullest replica.
    """
    microbatches, stages = forward.shape
    ranks = busy.shape[0]
    count = 2 * microbatches * stages
    ready = np.zeros(count)
    behind = np.full(count, -1, np.int64)
    first = np.full(ranks, -1, np.int64)
    free, last = np.zeros(ranks), np.ones(ranks, np.int64)
    chosen, start = np.full(ranks, -1, np.int64), np.full(ranks, np.inf)
    inside, most, fullest = np.zeros(replicas, np.int64), 0, 0
    #: Microbatches that wait to enter a replica, in the order in which they came.
    waiting = np.full((replicas, microbatches), -1, np.int64)
    came, left = np.zeros(replicas, np.int64), np.zeros(replicas, np.int64)
    arrived = np.zeros(microbatches)
    flying = coming = 0
    busy[:] = 0.0
    end[:] = 0.0
    #: What is to be made ready: (microbatch, stage, kind, time), as a stack.
    todo = np.empty((4 * microbatches + 8, 3), np.int64)
    when = np.empty(4 * microbatches + 8)
    top = 0
    while flying < admitted and coming < microbatches:
        todo[top] = (coming, 0, 0)
        when[top] = 0.0
        top, coming, flying = top + 1, coming + 1, flying + 1
    most = flying
    while True:
        while top:
            top -= 1
            own, stage, kind, time = todo[top, 0], todo[top, 1], todo[top, 2], when[top]
            home = replica[own]
            if kind == 0:
                while stage < stages and forward[own, stage] < 0.0 and stage != entry:
                    stage += 1
                if stage == entry and arrived[own] == 0.0:
                    if inside[home] >= entered:
                        arrived[own] = max(time, 1e-300)
                        waiting[home, came[home]] = own
                        came[home] += 1
                        continue
                    arrived[own] = max(time, 1e-300)
                    inside[home] += 1
                    fullest = max(fullest, inside[home])
                while stage < stages and forward[own, stage] < 0.0:
                    stage += 1
                if stage == stages:
                    kind, stage = 1, stages - 1
            if kind == 1:
                while stage >= 0 and backward[own, stage] < 0.0:
                    stage -= 1
                if stage < entry and arrived[own] > 0.0:
                    arrived[own] = -1.0
                    inside[home] -= 1
                    if left[home] < came[home]:
                        other = waiting[home, left[home]]
                        left[home] += 1
                        inside[home] += 1
                        fullest = max(fullest, inside[home])
                        todo[top] = (other, entry, 0)
                        when[top] = max(time, arrived[other])
                        top += 1
                if stage < 0:
                    flying -= 1
                    if coming < microbatches:
                        todo[top] = (coming, 0, 0)
                        when[top] = time
                        top, coming, flying = top + 1, coming + 1, flying + 1
                        most = max(most, flying)
                    continue
            task = (own * stages + stage) * 2 + kind
            place = rank[own, stage]
            ready[task] = time
            behind[task] = first[place]
            first[place] = task
            _choose(place, first, behind, ready, free, last, stages, chosen, start)
        place = -1
        for other in range(ranks):
            if chosen[other] >= 0 and (place < 0 or start[other] < start[place]):
                place = other
        if place < 0:
            return most, fullest
        task = chosen[place]
        kind, stage = task % 2, task // 2 % stages
        own = task // 2 // stages
        seconds = forward[own, stage] if kind == 0 else backward[own, stage]
        free[place] = start[place] + seconds
        busy[place] += seconds
        end[place] = free[place]
        last[place] = kind
        _drop(place, task, first, behind)
        _choose(place, first, behind, ready, free, last, stages, chosen, start)
        if kind == 0:
            todo[top] = (own, stage + 1, 0)
            when[top] = free[place] + (delay[own, stage] if stage + 1 < stages else 0.0)
        else:
            todo[top] = (own, stage - 1, 1)
            when[top] = free[place] + (delay[own, stage - 1] if stage else 0.0)
        top += 1


@njit(cache=True, nogil=True)
def _drop(place: int, task: int, first: Ints, behind: Ints) -> None:
    if first[place] == task:
        first[place] = behind[task]
        return
    before = first[place]
    while behind[before] != task:
        before = behind[before]
    behind[before] = behind[task]


@njit(cache=True, nogil=True)
def _choose(
    place: int,
    first: Ints,
    behind: Ints,
    ready: Floats,
    free: Floats,
    last: Ints,
    stages: int,
    chosen: Ints,
    start: Floats,
) -> None:
    """What a rank would run next: the other kind than last where both can start, of one kind the first microbatch."""
    chosen[place], start[place] = -1, np.inf
    soonest = np.inf
    task = first[place]
    while task >= 0:
        soonest = min(soonest, ready[task])
        task = behind[task]
    if soonest == np.inf:
        return
    time = max(free[place], soonest)
    best, rank_of_best = -1, np.int64(0)
    task = first[place]
    while task >= 0:
        if ready[task] <= time:
            kind, stage = task % 2, task // 2 % stages
            own = task // 2 // stages
            rank = (own * stages + (stages - 1 - stage)) * 2 * 2
            if kind == last[place]:
                rank += 4 * stages * start.shape[0] * 1_000_000
            if best < 0 or rank < rank_of_best:
                best, rank_of_best = task, rank
        task = behind[task]
    chosen[place], start[place] = best, time


@njit(cache=True, nogil=True)
def in_order(
    forward: Floats, backward: Floats, delay: Floats, rank: Ints, warm: Ints, busy: Floats, end: Floats
) -> bool:
    """The same of 1F1B: every rank runs ``warm`` forwards, then a forward and a backward in turn, then backwards.

    Shapes are those of ``simulate``, with one stage of a microbatch a rank; a stage that is not there takes no time.
    Whether all was run: with too few forwards ahead ranks wait for each other.
    """
    microbatches, stages = forward.shape
    ranks = busy.shape[0]
    own = np.zeros((ranks, microbatches), np.int64)
    count = np.zeros(ranks, np.int64)
    for microbatch in range(microbatches):
        for stage in range(stages):
            place = rank[microbatch, stage]
            own[place, count[place]] = microbatch * stages + stage
            count[place] += 1
    ahead, ready = np.full(microbatches * stages, np.inf), np.full(microbatches * stages, np.inf)
    for microbatch in range(microbatches):
        ahead[microbatch * stages] = 0.0
    forwards, backwards = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    busy[:] = 0.0
    end[:] = 0.0
    left, moving = 2 * microbatches * stages, True
    while moving:
        moving = False
        for place in range(ranks):
            while backwards[place] < count[place]:
                forth = forwards[place] < min(count[place], backwards[place] + warm[place] + 1)
                task = own[place, forwards[place] if forth else backwards[place]]
                time = ahead[task] if forth else ready[task]
                if time == np.inf:
                    break
                microbatch, stage = task // stages, task % stages
                seconds = max(0.0, forward[microbatch, stage] if forth else backward[microbatch, stage])
                end[place] = max(end[place], time) + seconds
                busy[place] += seconds
                if forth:
                    forwards[place] += 1
                    if stage + 1 < stages:
                        ahead[task + 1] = end[place] + delay[microbatch, stage]
                    else:
                        ready[task] = end[place]
                else:
                    backwards[place] += 1
                    if stage:
                        ready[task - 1] = end[place] + delay[microbatch, stage - 1]
                left -= 1
                moving = True
    return bool(left == 0)
