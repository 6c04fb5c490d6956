"""The dual-queue interleaving under the banker's rule, compiled by numba without the GIL.

Importing this module imports numba. ``reference.Interleaver`` says the same in plain Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros as _trailing_zeros
from numpy.typing import NDArray

from ds_dip.scheduling.columns import Floats
from ds_dip.scheduling.graph import Graph, Ints32, Units

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
Words = NDArray[np.uint64]
trailing_zeros: Any = _trailing_zeros  # numba's stub wants the typing context that compilation passes


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
    stale, ints = ints[:ranks], ints[ranks:]
    active, ints = ints[:groups], ints[groups:]
    turn, ints = ints[:groups], ints[groups:]
    left, ints = ints[:groups], ints[groups:]
    here = ints[: groups * ranks].reshape(groups, ranks)
    ready, floats = floats[:n], floats[n:]
    free, floats = floats[:ranks], floats[ranks:]
    when, floats = floats[:ranks], floats[ranks:]
    use, floats = floats[:ranks], floats[ranks:]
    held, floats = floats[: groups * ranks].reshape(groups, ranks), floats[groups * ranks :]
    need, floats = floats[: groups * ranks].reshape(groups, ranks), floats[groups * ranks :]
    room = floats[: groups + 1]
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
        stale[own] = own
    changed = ranks
    for task in range(n):
        waiting[task] = g.waiting[task]
        ready[task] = 0.0
    if g.limited:
        for group in range(groups):
            turn[group] = groups
            left[group] = g.members[group]
            for own in range(ranks):
                held[group, own] = 0.0
                here[group, own] = g.local[group, own]
                need[group, own] = g.need[group, own]
    count = 0
    for index in range(n):
        task = by_priority[index]
        slot = g.slot[task]
        spot = cursor[slot]
        cursor[slot] = spot + 1
        place[task] = spot
        at[spot] = task
        if waiting[task] == 0:
            mark(bits, low, slot, spot)
    makespan = 0.0
    for step in range(n):
        while changed:
            changed -= 1
            own = np.int64(stale[changed])  # type: ignore[assignment]  # signed, as it is used with integers that are
            dirty[own] = 0
            spare = ample = np.inf
            known = not g.limited
            if g.limited:
                spare = g.limit[own] - use[own]
                ample = max(0.0, spare - g.most[own])
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
                if not known and g.claims[slot] and (low[slot] < g.slot_word[slot + 1] or pending[slot] != none):
                    # room[k] is the largest claim that the k-th active group may make, the last what all others may.
                    known = True
                    most = spare
                    used = use[own]
                    for order in range(count):
                        room[order] = most
                        most = min(most, g.limit[own] - used - need[active[order], own])
                        used -= held[active[order], own]
                    room[groups] = most
                found = none
                opening = True
                for word in range(np.int64(low[slot]), np.int64(g.slot_word[slot + 1])):
                    rest = bits[word]
                    if rest == 0 and opening:
                        low[slot] = word + 1
                    while rest != 0:
                        opening = False
                        task = at[np.uint32((word << 6) + np.int64(trailing_zeros(rest)))]
                        claim = g.claim[task]
                        if (claim <= ample or claim <= room[turn[g.group[task]]]) and g.acquire[task] <= spare:
                            found = task
                            break
                        rest &= rest - np.uint64(1)
                    if found != none:
                        break
                at_once = free[own]
                if found == none:
                    task = pending[slot]
                    while task != none:
                        sooner = found == none or ready[task] < at_once
                        if sooner or (ready[task] == at_once and place[task] < place[found]):
                            claim = g.claim[task]
                            if (claim <= ample or claim <= room[turn[g.group[task]]]) and g.acquire[task] <= spare:
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
        chosen = -1
        begin = np.inf
        for own in range(ranks):
            if when[own] < begin:
                begin = when[own]
                chosen = own
        if chosen < 0:
            return -1.0
        task = best[chosen]
        slot = g.slot[task]
        kind = slot - 3 * chosen
        dirty[chosen] = 1
        stale[0] = chosen
        changed = 1
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
            if turn[group] == groups:
                turn[group] = count
                active[count] = group
                count += 1
                # What was admitted behind all active groups may not be any more.
                for own in range(ranks):
                    if own != chosen and best[own] != none and turn[g.group[best[own]]] == groups:
                        dirty[own] = 1
                        stale[changed] = own
                        changed += 1
            left[group] -= 1
            if left[group] == 0:
                count -= 1
                for shift in range(np.int64(turn[group]), count):
                    active[shift] = active[shift + 1]
                    turn[active[shift]] = shift
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
                # A rank's next task stays if the new one only could start later, or comes later in its queue.
                stays = ready[after] > when[own]
                if not stays and ready[after] <= free[own] and when[own] <= free[own]:
                    stays = target == g.slot[best[own]] and place[after] > place[best[own]]
                if not stays and not dirty[own]:
                    dirty[own] = 1
                    stale[changed] = own
                    changed += 1
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
    ints = np.empty(3 * n + 64 * words + 13 * ranks + 3 * groups + groups * ranks, dtype=np.uint32)
    floats = np.empty(n + 3 * ranks + 2 * groups * ranks + groups + 1)
    return ints, floats, np.empty(words, dtype=np.uint64)
