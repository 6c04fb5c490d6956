"""Memory strategies of stage pairs: candidates from layers (offline), and one per pair for a given order.

DIP, "per-layer memory optimisation". The integer program minimises a rank's total latency under its
capacity; HiGHS solves it from a greedy start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ds_dip.scheduling.admission import SLACK
from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.columns import Floats, Ints
from ds_dip.scheduling.lifetimes import grouped
from ds_dip.scheduling.problem import Choice, Pair


def stage_candidates(layers: Sequence[Sequence[Choice]], count: int = 10) -> tuple[Choice, ...]:
    """Up to ``count`` strategies of a stage from its layers' own, fastest first.

    Durations and memory add up over layers; the workspace of a backward is the largest of its
    layers', as they run one after another. By a multiple-choice knapsack over memory: the fastest,
    the leanest, and the fastest of every memory bucket between. Raises ValueError for a layer
    without choices.
    """
    front = [Choice(0.0, 0.0, 0.0, 0.0, None)]
    for position, layer in enumerate(layers):
        if not layer:
            raise ValueError(f"layer {position} has no memory choices; give at least one")
        front = _thin([_join(stage, choice) for stage in front for choice in layer], 256)
    return tuple(sorted(_thin(front, count), key=lambda choice: (_latency(choice), choice.memory)))


def _join(stage: Choice, layer: Choice) -> Choice:
    weight = None
    if layer.weight_duration is not None:
        weight = (stage.weight_duration or 0.0) + layer.weight_duration
    return Choice(
        stage.forward_duration + layer.forward_duration,
        stage.backward_duration + layer.backward_duration,
        stage.memory + layer.memory,
        max(stage.backward_acquire, layer.backward_acquire),
        weight if weight is not None else stage.weight_duration,
    )


def _latency(choice: Choice) -> float:
    return choice.forward_duration + choice.backward_duration + (choice.weight_duration or 0.0)


def _thin(choices: list[Choice], count: int) -> list[Choice]:
    """Choices that no other beats in latency and memory, at most ``count``: ends, and one a bucket."""
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.memory, _latency(choice), choice.backward_acquire)):
        if not front or _latency(choice) < _latency(front[-1]) * (1 - 1e-12):
            front.append(choice)
    if len(front) <= count:
        return front
    low, high = front[0].memory, front[-1].memory
    buckets: dict[int, Choice] = {}
    for choice in front[1:-1]:
        buckets[int((choice.memory - low) / (high - low) * max(1, count - 2) * (1 - 1e-12))] = choice
    return [front[0], *list(buckets.values())[: count - 2], front[-1]]


SHARES = (0.85, 0.7, 0.55, 0.4, 0.25)
"""Shares of memory x time, between the fastest and the leanest choices, that priced choices are made for."""


def priced(arrays: Arrays) -> list[tuple[int, ...]]:
    """Choices of all pairs under a price on memory x time, the dearer the fewer: none without pairs.

    A pair's time is the longest path from its forward to its backward: what is held long is computed again first.
    ``arrays`` are the problem's own.
    """
    from ds_dip.scheduling import kernels

    pairs = arrays.problem.pairs
    if not pairs:
        return []
    members = arrays.pairs
    last = np.where(members[:, 2] >= 0, members[:, 2], members[:, 1])
    order, at = grouped(arrays)
    graph = arrays.succ_ptr, arrays.succ, arrays.succ_delay, arrays.duration
    time = kernels.longest(order, at, *graph, members[:, 0].copy(), last)
    seconds = np.full((len(pairs), max(len(pair.choices) for pair in pairs)), np.inf)
    memory = np.zeros_like(seconds)
    for row, pair in enumerate(pairs):
        for column, own in enumerate(pair.choices):
            seconds[row, column], memory[row, column] = _latency(own), own.memory
    held, rows = memory * time[:, None], np.arange(len(pairs))
    most, least = (
        held[rows, seconds.argmin(axis=1)].sum(),
        np.where(np.isfinite(seconds), held, np.inf).min(axis=1).sum(),
    )
    found = []
    for share in SHARES:
        low, high = -60.0, 60.0
        for _ in range(40):
            price = (low + high) / 2
            picked = (seconds + 2.0**price * held).argmin(axis=1)
            low, high = (low, price) if held[rows, picked].sum() <= least + share * (most - least) else (price, high)
        found.append(tuple((seconds + 2.0**high * held).argmin(axis=1).tolist()))
    return found


WIDEST, BRANCHES = 400, 20
"""Columns and branches of an integer program whose time is not limited."""


@dataclass(frozen=True, slots=True)
class Knapsack:
    """One rank's program: which pair has which choice, and what must fit at which moment.

    ``cost`` and ``pair`` (columns,) belong to a (pair, choice); ``use`` (moments, columns) is the
    memory a column takes at a moment, ``room`` (moments,) what is left for pairs there.
    """

    pairs: list[int]
    pair: Ints
    choice: Ints
    cost: Floats
    use: Floats
    room: Floats


def choose(arrays: Arrays, orders: Sequence[Sequence[int]], seconds: float | None = 0.01) -> tuple[int, ...] | None:
    """The choice of every pair for given orders, rank by rank; None where no choice fits.

    ``arrays`` are the problem's own. ``seconds`` limit the program of one rank, whose relative gap
    may stay at 5 %; the greedy start is kept where it finds nothing better, and with 0 seconds.
    None limits it by branches instead, so that the answer does not depend on the machine; then
    programs of more than ``WIDEST`` columns stay greedy.
    """
    chosen = [0] * len(arrays.problem.pairs)
    for rank, order in enumerate(orders):
        program = _program(arrays, rank, order)
        if program is None:
            continue
        start = _greedy(program)
        if start is None:
            return None
        wide = seconds == 0 or (seconds is None and len(program.cost) > WIDEST)
        picked = start if wide or not len(program.room) else _improve(program, start, seconds)
        for column in picked:
            chosen[program.pairs[int(program.pair[column])]] = int(program.choice[column])
    return tuple(chosen)


def _program(arrays: Arrays, rank: int, order: Sequence[int]) -> Knapsack | None:
    place = {task: position for position, task in enumerate(order)}
    pairs = [number for number, members in enumerate(arrays.pairs.tolist()) if members[0] in place]
    if not pairs:
        return None
    held: list[Pair] = [arrays.problem.pairs[number] for number in pairs]
    pair = np.array([position for position, own in enumerate(held) for _ in own.choices])
    choice = np.array([number for own in held for number in range(len(own.choices))])
    cost = np.array([_latency(own.choices[number]) for own in held for number in range(len(own.choices))])
    memory = np.array([own.memory for entry in held for own in entry.choices])
    work = np.array([own.backward_acquire for entry in held for own in entry.choices])
    members = arrays.pairs[pairs]
    first = np.array([place[task] for task in members[:, 0].tolist()])
    back = np.array([place[task] for task in members[:, 1].tolist()])
    last = np.array([place[weight if weight >= 0 else task] for task, weight in members[:, 1:].tolist()])
    own = np.asarray(order, dtype=np.int64)
    acquire, net = arrays.acquire[own].copy(), (arrays.acquire - arrays.release)[own]
    paired = np.concatenate([first, back, last])
    acquire[np.concatenate([first, back])] = 0.0
    net[paired] = 0.0
    level = np.concatenate([[0.0], np.cumsum(net)])[:-1] + acquire
    limit = float(arrays.capacity[rank]) * (1 + SLACK)
    if not np.isfinite(limit):
        empty = np.zeros((0, len(cost)))
        return Knapsack(pairs, pair, choice, cost, empty, np.zeros(0))
    ending = np.zeros(len(own) + 1, dtype=bool)
    ending[last] = ending[back] = True
    ending[len(own)] = True
    moments = np.nonzero(ending[1:] | ending[:-1] | (acquire > 0))[0]
    alive = (first[pair][None, :] <= moments[:, None]) & (moments[:, None] <= last[pair][None, :])
    use = alive * memory[None, :] + (back[pair][None, :] == moments[:, None]) * work[None, :]
    return Knapsack(pairs, pair, choice, cost, use, limit - level[moments])


def _greedy(program: Knapsack) -> Ints | None:
    """Fastest columns, made leaner at each moment that overflows where it costs least; None if none fits."""
    order = np.lexsort([program.use.max(axis=0, initial=0.0), program.cost, program.pair])
    picked = order[np.searchsorted(program.pair[order], np.arange(len(program.pairs)))]
    for use, room in zip(program.use, program.room, strict=True):
        while use[picked].sum() > room:
            now = picked[program.pair]
            saved = use[now] - use
            price = np.full(len(saved), np.inf)
            np.divide(program.cost - program.cost[now], saved, out=price, where=saved > 0)
            column = int(np.argmin(price))
            if not saved[column] > 0:
                return None
            picked[program.pair[column]] = column
    return picked if (program.use[:, picked].sum(axis=1) <= program.room).all() else None


def _improve(program: Knapsack, start: Ints, seconds: float | None) -> Ints:
    """The program's columns by HiGHS from a start, within its limits; the start where it finds no better."""
    import highspy

    class Quiet(highspy.Highs):
        """HiGHS without the Python callbacks, whose set-up prints a banner on standard output."""

        def __init__(self) -> None:
            super(highspy.Highs, self).__init__()

    columns = len(program.cost)
    solver = Quiet()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    # Presolve takes longer than these programs do without it.
    solver.setOptionValue("presolve", "off")
    solver.setOptionValue("mip_rel_gap", 0.05)
    if seconds is None:
        solver.setOptionValue("mip_max_nodes", BRANCHES)
    else:
        solver.setOptionValue("time_limit", seconds)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, len(program.pairs) + len(program.room)
    model.col_cost_ = program.cost
    model.col_lower_, model.col_upper_ = np.zeros(columns), np.ones(columns)
    ones = np.ones(len(program.pairs))
    model.row_lower_ = np.concatenate([ones, np.full(len(program.room), -highspy.kHighsInf)])
    model.row_upper_ = np.concatenate([ones, program.room])
    matrix = np.concatenate([np.arange(len(program.pairs))[:, None] == program.pair[None, :], program.use])
    row, column = np.nonzero(matrix)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.searchsorted(row, np.arange(len(matrix) + 1))
    model.a_matrix_.index_ = column
    model.a_matrix_.value_ = matrix[row, column].astype(float)
    model.integrality_ = [highspy.HighsVarType.kInteger] * columns
    solver.passModel(model)
    values = np.zeros(columns)
    values[start] = 1.0
    solution = highspy.HighsSolution()
    solution.col_value = values.tolist()
    solver.setSolution(solution)
    solver.run()
    found = np.array(solver.getSolution().col_value)
    if len(found) != columns:
        return start
    picked = np.nonzero(found > 0.5)[0]
    fits = len(picked) == len(program.pairs) and (program.use[:, picked].sum(axis=1) <= program.room).all()
    return picked if fits and program.cost[picked].sum() < program.cost[start].sum() else start
