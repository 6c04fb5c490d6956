"""Annealing of per-rank orders, compiled: moves in critical blocks and of whole microbatches.

A state is an order per rank, always acyclic and within memory: a rank's memory depends on its own
order alone. Importing this module imports numba.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ds_dip.scheduling.advancing import advance, settle
from ds_dip.scheduling.columns import Floats
from ds_dip.scheduling.graph import Ints32
from ds_dip.scheduling.moves import block, choose, critical, draw, exchange, fits, shift
from ds_dip.scheduling.queueing import Words
from ds_dip.scheduling.space import Space


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
    microbatches. Scratch: 5 n + 3 ranks ints, 8 n floats.
    """
    n, ranks = sequence.shape[0], s.offset.shape[0] - 1
    if n == 0:
        return -1.0, 0
    pred_ptr, pred, pred_delay, head, follow = s.pred_ptr, s.pred, s.pred_delay, s.head, s.follow
    rank, offset, limit, base, table = s.rank, s.offset, s.limit, s.base, s.table
    pair_of, pairs, choice_ptr, choice_values = s.pair_of, s.pairs, s.choice_ptr, s.choice_values
    duration, acquire, net = s.duration.copy(), s.acquire.copy(), s.net.copy()
    for pair in range(choices.shape[0]):
        choose(pairs, choice_ptr, choice_values, pair, choices[pair], duration, acquire, net)
    best_choices[:] = choices
    where, path, order, trial_order = ints[:n], ints[n : 2 * n], ints[2 * n : 3 * n], ints[3 * n : 4 * n]
    room = ints[4 * n :]
    start, end = floats[:n], floats[n : 2 * n]
    trial_start, trial_end = floats[2 * n : 3 * n], floats[3 * n : 4 * n]
    level, trial = floats[4 * n : 5 * n], floats[5 * n : 6 * n]
    rest, crest = floats[6 * n : 7 * n], floats[7 * n : 8 * n]
    for place in range(n):
        where[sequence[place]] = place
        best[place] = sequence[place]
        start[place] = 0.0
    for own in range(ranks):
        if not fits(limit[own], base[own], acquire, net, sequence, level, offset[own], offset[own + 1]):
            return -1.0, 0
    trial[:] = level
    current, done = advance(
        duration, pred_ptr, pred, pred_delay, head, follow, rest, crest, sequence, offset, -np.inf, np.inf, np.inf,
        start, end, trial_start, trial_end, order, room,
    )  # fmt: skip
    if current < 0:
        return current, 0
    start, trial_start = trial_start, start
    end, trial_end = trial_end, end
    settle(
        duration, pred_ptr, pred, pred_delay, follow, sequence, where, rank, offset, end, order, rest, crest
    )  # fmt: skip
    record = current
    length = critical(pred_ptr, pred, pred_delay, follow, rank, offset, sequence, where, start, end, path, state)
    cooling = (cold / hot) ** (1.0 / max(1, evaluations))
    heat = hot
    used = 0
    tries = 0
    wide, many = table.shape
    while used < evaluations and tries < 20 * evaluations and record > bound:
        tries += 1
        whole = many > 1 and draw(state, 1000) < swaps
        one = other = first = last = source = target = own = 0
        pair = -1
        early = late = 0.0
        possible = True
        if choices.shape[0] and not whole and draw(state, 4) == 0:
            pair = pair_of[path[draw(state, length)]] if draw(state, 2) else draw(state, choices.shape[0])
        if pair >= 0:
            many_choices = choice_ptr[pair + 1] - choice_ptr[pair]
            if many_choices < 2:
                continue
            source = choices[pair]
            target = draw(state, many_choices - 1)
            target += target >= source
            choices[pair] = target
            choose(pairs, choice_ptr, choice_values, pair, target, duration, acquire, net)
            own = rank[pairs[pair, 0]]
            early = late = start[pairs[pair, 0]]
            for member in pairs[pair]:
                if member >= 0:
                    early, late = min(early, start[member]), max(late, start[member])
            if s.limited:
                possible = fits(limit[own], base[own], acquire, net, sequence, trial, offset[own], offset[own + 1])
        elif whole:
            one = draw(state, many)
            other = draw(state, many - 1)
            other += other >= one
            first, last = 0, wide
            if draw(state, 2):
                first = draw(state, wide)
                last = first + 1 + draw(state, wide - first)
            early, late = exchange(table, sequence, where, one, other, first, last, start)
            if early > late:
                continue
            if s.limited:
                for own in range(ranks):
                    if not fits(limit[own], base[own], acquire, net, sequence, trial, offset[own], offset[own + 1]):
                        possible = False
                        break
        else:
            low, high = block(rank, offset, sequence, where, path, length, start, end, state)
            if low == high:
                continue
            own = rank[sequence[low]]
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
            first, last = min(source, target), max(source, target) + 1
            early, late = start[sequence[first]], start[sequence[last - 1]]
            shift(sequence, where, source, target)
            if s.limited:
                before = level[first - 1] if first > offset[own] else base[own]
                possible = fits(limit[own], before, acquire, net, sequence, trial, first, last)
        result = -1.0
        if possible:
            used += 1
            heat *= cooling
            chance = (draw(state, 1 << 30) + 1) / (1 << 30)
            until = current - heat * np.log(chance)
            result, done = advance(
                duration, pred_ptr, pred, pred_delay, head, follow, rest, crest, sequence, offset, early, late, until,
                start, end, trial_start, trial_end, trial_order, room,
            )  # fmt: skip
        if result >= 0:
            kept = 0
            for index in range(n):
                if start[order[index]] < early:
                    order[kept] = order[index]
                    kept += 1
            order[kept:] = trial_order[:done]
            current = result
            start, trial_start = trial_start, start
            end, trial_end = trial_end, end
            if s.limited:
                if whole or pair >= 0:
                    level[:] = trial
                else:
                    level[first:last] = trial[first:last]
            settle(
                duration, pred_ptr, pred, pred_delay, follow, sequence, where, rank, offset, end, order, rest, crest
            )  # fmt: skip
            length = critical(
                pred_ptr, pred, pred_delay, follow, rank, offset, sequence, where, start, end, path, state
            )  # fmt: skip
            if current < record * (1 - 1e-12):
                record = current
                best[:] = sequence
                best_choices[:] = choices
        elif pair >= 0:
            choices[pair] = source
            choose(pairs, choice_ptr, choice_values, pair, source, duration, acquire, net)
            if s.limited:
                trial[:] = level
        elif whole:
            exchange(table, sequence, where, one, other, first, last, start)
            if s.limited:
                trial[:] = level
        else:
            shift(sequence, where, target, source)
            if s.limited:
                trial[first:last] = level[first:last]
    return record, used
