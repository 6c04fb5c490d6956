"""The dual-queue interleaving under the banker's rule, compiled by numba without the GIL.

Importing this module imports numba. ``reference.Interleaver`` says the same in plain Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros as _trailing_zeros
from numpy.typing import NDArray

from ds_dip.scheduling.arrays import Floats
from ds_dip.scheduling.graph import Graph, Ints32, Units

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
FRESH = 2**32 - 1
"""The turn of a group that has not started."""
Words = NDArray[np.uint64]
trailing_zeros: Any = _trailing_zeros  # numba's stub wants the typing context that compilation passes


@njit(cache=True, nogil=True, boundscheck=False)
def admissible(
    g: Graph, task: int, own: int, use: Floats, held: Floats, need: Floats, active: Units, count: int
) -> bool:
    """The banker's rule for one task: ``active[:count]`` are groups in order of first start."""
    limit = g.limit[own]
    used = use[own]
    if used + g.acquire[task] > limit:
        return False
    claim = g.claim[task]
    if claim <= 0.0 or used + claim + g.most[own] <= limit:
        return True
    group = g.group[task]
    for place in range(count):
        earlier = active[place]
        if earlier == group:
            break
        if used + need[earlier, own] + claim > limit:
            return False
        used -= held[earlier, own]
    return True


@njit(cache=True, nogil=True, boundscheck=False)
def mark(bits: Words, low: Units, slot: int, spot: int) -> None:
    """Set a task's bit, and keep the first word of its slot that may hold one."""
    word = np.uint32(spot >> 6)
    bits[word] |= np.uint64(1) << np.uint64(spot & 63)
    if word < low[slot]:
        low[slot] = word


@njit(cache=True, nogil=True, boundscheck=False)
def interleave(
    g: Graph, by_priority: Units, sequence: Ints32, start: Floats, ints: Units, floats: Floats, bits: Words
) -> float:
    """Dual-queue interleaving with memory; ``by_priority`` are all tasks, first ones first.

    Fills ``sequence`` (tasks as they start) and ``start`` (n,); returns the makespan, or -1 if it
    got stuck, which the banker's rule excludes. Scratch: see ``scratch``.
    """
    n, ranks = g.rank.shape[0], g.limit.shape[0]
    none = np.uint32(n)
    groups = g.need.shape[0]
    slots = 3 * ranks
    spread = 64 * g.slot_word[slots]
    waiting, ints = ints[:n], ints[n:]
    link, ints = ints[:n], ints[n:]
    place, ints = ints[:n], ints[n:]
    at, ints = ints[:spread], ints[spread:]
    pending, ints = ints[:slots], ints[slots:]
    low, ints = ints[:slots], ints[slots:]
    cursor, ints = ints[:slots], ints[slots:]
    best, ints = ints[:ranks], ints[ranks:]
    last, ints = ints[:ranks], ints[ranks:]
    dirty, ints = ints[:ranks], ints[ranks:]
    active, ints = ints[:groups], ints[groups:]
    joined, ints = ints[:groups], ints[groups:]
    left, ints = ints[:groups], ints[groups:]
    here = ints[: groups * ranks].reshape(groups, ranks)
    ready, floats = floats[:n], floats[n:]
    free, floats = floats[:ranks], floats[ranks:]
    when, floats = floats[:ranks], floats[ranks:]
    use, floats = floats[:ranks], floats[ranks:]
    held, floats = floats[: groups * ranks].reshape(groups, ranks), floats[groups * ranks :]
    need = floats[: groups * ranks].reshape(groups, ranks)
    for slot in range(slots):
        cursor[slot] = 64 * g.slot_word[slot]
        low[slot] = g.slot_word[slot + 1]
        pending[slot] = none
    for word in range(g.slot_word[slots]):
        bits[word] = np.uint64(0)
    for own in range(ranks):
        free[own] = use[own] = 0.0
        last[own] = BACKWARD
        dirty[own] = 1
    if g.limited:
        for group in range(groups):
            joined[group] = FRESH
            left[group] = 0
            for own in range(ranks):
                held[group, own] = 0.0
                here[group, own] = 0
                need[group, own] = g.need[group, own]
        for task in range(n):
            left[g.group[task]] += 1
            here[g.group[task], g.rank[task]] += 1
    count = turns = 0
    for index in range(n):
        task = by_priority[index]
        slot = g.slot[task]
        spot = cursor[slot]
        cursor[slot] = spot + 1
        place[task] = spot
        at[spot] = task
        waiting[task] = g.waiting[task]
        ready[task] = 0.0
        if waiting[task] == 0:
            mark(bits, low, slot, spot)
    makespan = 0.0
    for step in range(n):
        chosen = -1
        begin = np.inf
        for own in range(ranks):
            if dirty[own]:
                dirty[own] = 0
                best[own] = none
                when[own] = np.inf
                for kind in range(3):
                    slot = 3 * own + kind
                    if g.slot_word[slot] == g.slot_word[slot + 1]:
                        continue
                    # What is ready by now moves from the list to the bits.
                    previous, task = none, pending[slot]
                    while task != none:
                        following = link[task]
                        if ready[task] <= free[own]:
                            if previous != none:
                                link[previous] = following
                            else:
                                pending[slot] = following
                            mark(bits, low, slot, place[task])
                        else:
                            previous = task
                        task = following
                    found = none
                    opening = True
                    refused, since = np.inf, np.int64(FRESH)
                    for word in range(np.int64(low[slot]), np.int64(g.slot_word[slot + 1])):
                        rest = bits[word]
                        if rest == 0 and opening:
                            low[slot] = word + 1
                        while rest != 0:
                            opening = False
                            task = at[np.uint32((word << 6) + np.int64(trailing_zeros(rest)))]
                            if not g.limited:
                                found = task
                                break
                            # What a group was refused is refused to later ones too, if they ask for as much.
                            turn = np.int64(joined[g.group[task]])
                            if not (turn >= since and g.claim[task] >= refused):
                                if admissible(g, task, own, use, held, need, active, count):
                                    found = task
                                    break
                                if g.claim[task] > 0.0 and turn <= since:
                                    since = turn
                                    refused = max(g.claim[task], g.acquire[task])
                            rest &= rest - np.uint64(1)
                        if found != none:
                            break
                    at_once = free[own]
                    if found == none:
                        task = pending[slot]
                        while task != none:
                            sooner = found == none or ready[task] < at_once
                            if sooner or (ready[task] == at_once and place[task] < place[found]):
                                if not g.limited or admissible(g, task, own, use, held, need, active, count):
                                    found = task
                                    at_once = ready[task]
                            task = link[task]
                    if found == none:
                        continue
                    if kind == BACKWARD and best[own] != none and at_once == when[own]:
                        better = last[own] == FORWARD
                    else:
                        better = at_once < when[own]
                    if better:
                        best[own] = found
                        when[own] = at_once
            if when[own] < begin:
                begin = when[own]
                chosen = own
        if chosen < 0:
            return -1.0
        task = best[chosen]
        slot = g.slot[task]
        kind = slot - 3 * chosen
        dirty[chosen] = 1
        if begin <= free[chosen] and ready[task] <= free[chosen]:
            bits[place[task] >> 6] ^= np.uint64(1) << np.uint64(place[task] & 63)
        else:
            previous = none
            current = pending[slot]
            while current != task:
                previous = current
                current = link[current]
            if previous != none:
                link[previous] = link[task]
            else:
                pending[slot] = link[task]
        if kind != WEIGHT:
            last[chosen] = kind
        finish = begin + g.duration[task]
        sequence[step] = task
        start[task] = begin
        free[chosen] = finish
        makespan = max(makespan, finish + g.tail[task])
        if g.limited:
            group = g.group[task]
            if joined[group] == FRESH:
                joined[group] = turns
                turns += 1
                active[count] = group
                count += 1
                for own in range(ranks):
                    dirty[own] = 1
            left[group] -= 1
            if left[group] == 0:
                shift = 0
                while active[shift] != group:
                    shift += 1
                count -= 1
                while shift < count:
                    active[shift] = active[shift + 1]
                    shift += 1
            use[chosen] += g.net[task]
            held[group, chosen] += g.net[task]
            here[group, chosen] -= 1
            if here[group, chosen] == 0:
                need[group, chosen] = 0.0
            elif g.need_after[task] >= 0.0:
                need[group, chosen] = g.need_after[task]
            else:
                need[group, chosen] -= g.claim[task]
        for edge in range(g.succ_ptr[task], g.succ_ptr[task + 1] + 1):
            if edge < g.succ_ptr[task + 1]:
                after = g.succ[edge]
                ready[after] = max(ready[after], finish + g.succ_delay[edge])
            else:
                after = g.chained[task]
                if after == none:
                    break
            waiting[after] -= 1
            if waiting[after] == 0:
                target = g.slot[after]
                own = g.rank[after]
                # What could only start later than a rank's next task does not change that task.
                if ready[after] <= when[own]:
                    dirty[own] = 1
                if ready[after] <= free[own]:
                    mark(bits, low, target, place[after])
                else:
                    link[after] = pending[target]
                    pending[target] = after
    return makespan


def scratch(g: Graph) -> tuple[Units, Floats, Words]:
    """Room for one ``interleave`` at a time."""
    n, ranks, groups = len(g.rank), len(g.limit), len(g.need)
    words = int(g.slot_word[-1])
    ints = np.empty(3 * n + 64 * words + 12 * ranks + 3 * groups + groups * ranks, dtype=np.uint32)
    floats = np.empty(n + 3 * ranks + 2 * groups * ranks)
    return ints, floats, np.empty(words, dtype=np.uint64)
