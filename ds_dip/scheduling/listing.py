"""List scheduling of stages of equal length, compiled by numba without the GIL.

Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ds_dip.scheduling.columns import Ints
from ds_dip.scheduling.queueing import BACKWARD, FORWARD, WEIGHT, trailing_zeros


@njit(cache=True, nogil=True, boundscheck=False)
def list_slots(
    slot: Ints,
    spot: Ints,
    at: Ints,
    slot_word: Ints,
    group: Ints,
    succ_ptr: Ints,
    succ: Ints,
    inside: NDArray[np.bool_],
    limit: Ints,
    left: Ints,
    sequence: Ints,
) -> int:
    """Tasks as they start when all take one time slot; fills ``sequence`` and returns how many could start.

    ``slot`` (n,) is rank * 3 + kind, ``spot`` (n,) a task's bit, in the order of preference within a slot's
    words ``slot_word`` (3 ranks + 1,), ``at`` its inverse. On every rank a backward follows a forward and a forward a
    backward where both could start, weight gradients come where neither could. At most ``limit`` (ranks,) groups
    are in flight, admitted in their order. ``left`` (ranks, groups) counts tasks and is used up. Tasks outside
    ``inside`` are left out.
    """
    n, ranks, groups = slot.shape[0], left.shape[0], left.shape[1]
    bits = np.zeros(slot_word[3 * ranks], dtype=np.uint64)
    waiting = np.zeros(n, dtype=np.int64)
    flying = np.zeros((ranks, groups), dtype=np.bool_)
    count = np.zeros(ranks, dtype=np.int64)
    coming = np.zeros(ranks, dtype=np.int64)
    picked = np.empty(ranks, dtype=np.int64)
    last = np.full(ranks, FORWARD)
    for task in range(n):
        if inside[task]:
            for edge in range(succ_ptr[task], succ_ptr[task + 1]):
                waiting[succ[edge]] += 1
    for task in range(n):
        if inside[task] and waiting[task] == 0:
            bits[spot[task] >> 6] |= np.uint64(1) << np.uint64(spot[task] & 63)
    for own in range(ranks):
        while coming[own] < groups and left[own, coming[own]] == 0:
            coming[own] += 1
    done = 0
    while True:
        many = 0
        for own in range(ranks):
            for turn in range(3):
                kind = turn if turn == WEIGHT or last[own] == BACKWARD else 1 - turn
                task = -1
                for word in range(slot_word[3 * own + kind], slot_word[3 * own + kind + 1]):
                    if bits[word]:
                        task = at[(word << 6) + np.int64(trailing_zeros(bits[word]))]
                        break
                if task < 0:
                    continue
                number = group[task]
                if kind != WEIGHT and not flying[own, number]:
                    if coming[own] != number or count[own] >= limit[own]:
                        continue
                    flying[own, number] = True
                    count[own] += 1
                    coming[own] += 1
                    while coming[own] < groups and left[own, coming[own]] == 0:
                        coming[own] += 1
                bits[spot[task] >> 6] ^= np.uint64(1) << np.uint64(spot[task] & 63)
                picked[many] = task
                if kind != WEIGHT:
                    last[own] = kind
                many += 1
                break
        if many == 0:
            return done
        for place in range(many):
            task = picked[place]
            own = slot[task] // 3
            sequence[done] = task
            done += 1
            left[own, group[task]] -= 1
            if left[own, group[task]] == 0 and flying[own, group[task]]:
                flying[own, group[task]] = False
                count[own] -= 1
            for edge in range(succ_ptr[task], succ_ptr[task + 1]):
                after = succ[edge]
                waiting[after] -= 1
                if waiting[after] == 0 and inside[after]:
                    bits[spot[after] >> 6] |= np.uint64(1) << np.uint64(spot[after] & 63)
