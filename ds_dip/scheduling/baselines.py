"""The schedules of other systems on the same problem; each is refused with a reason where it cannot apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ds_dip.scheduling.arrays import Arrays, Ints, arrays_of
from ds_dip.scheduling.problem import InfeasibleError, Problem, ScheduleError
from ds_dip.scheduling.schedule import Schedule
from ds_dip.scheduling.static import (
    BaselineError,
    breadth_first,
    in_flight,
    interleaved_order,
    list_order,
    stages,
    zero_bubble_order,
)
from ds_dip.scheduling.timing import Orders, first_come, fits, leanest, peaks, schedule_of, starts

FORWARD, WEIGHT = 0, 2


def gpipe(problem: Problem) -> Schedule:
    """GPipe: all forwards of the batch, then all backwards."""
    return _fitting(problem, "GPipe", breadth_first)


def one_f_one_b(problem: Problem) -> Schedule:
    """1F1B: a backward whenever one is ready, and no more microbatches in flight than the pipeline is deep.

    The order is static: it comes from stages of equal length. A microbatch's encoder stages run
    right before its backbone forward; a rank that holds several chunks counts a microbatch once.
    """
    return _fitting(problem, "1F1B", lambda arrays: list_order(arrays, arrays.priority, in_flight(arrays)))


def interleaved_1f1b(problem: Problem) -> Schedule:
    """Interleaved 1F1B (Megatron-LM) for any number of microbatches and chunks.

    The chunks of a rank, over all modules in data-flow order, are its virtual stages; microbatches
    go through them in groups of one a rank, the last group as small as it comes. All
    sub-microbatches of a module's microbatch share its slot.
    """
    return _fitting(problem, "interleaved 1F1B", interleaved_order)


def coarse_optimus(problem: Problem) -> Schedule:
    """Coarse Optimus: all encoder work before the backbone, which then runs 1F1B."""

    def orders(arrays: Arrays) -> Orders:
        if len(set(arrays.module.tolist())) < 2:
            raise BaselineError("it needs an encoder and a backbone, and this problem has one module")
        last = arrays.module[np.argmax(arrays.depth * (arrays.kind == FORWARD))]
        encoder = arrays.module != last
        rank_of = np.where(arrays.kind == FORWARD, np.where(encoder, 0, 1), np.where(encoder, 2, 1))
        backbone = list_order(arrays, arrays.priority, in_flight(arrays, ~encoder), mask=~encoder)
        place = np.zeros(arrays.n, dtype=np.int64)
        for order in backbone:
            place[order] = np.arange(len(order))
        keys = np.where(encoder, arrays.priority, place)
        return _by_rank(arrays, np.lexsort([keys, rank_of]))

    return _fitting(problem, "coarse Optimus", orders)


def static_plan(problem: Problem) -> Schedule:
    """A representative plan (nnScaler-like): the first-come order found with every duration replaced
    by the mean of its kind, module and chunk, run with the real ones.
    """

    def orders(arrays: Arrays) -> Orders:
        chunk = stages(arrays)
        total, count = np.bincount(chunk, arrays.duration), np.bincount(chunk)
        return first_come(replace(arrays, duration=(total / np.maximum(count, 1))[chunk], cache={}))

    return _fitting(problem, "static plan", orders)


def zb_h1(problem: Problem) -> Schedule:
    """ZB-H1-like: 1F1B whose weight gradients (W tasks) come later the later the rank.

    They fill the time in which the last ranks would wait; every rank keeps about as many
    microbatches as the first rank of 1F1B does.
    """

    def orders(arrays: Arrays) -> Orders:
        if not (arrays.kind == WEIGHT).any():
            raise BaselineError("it needs weight-gradient tasks; split the backwards into B and W")
        return zero_bubble_order(arrays)

    return _fitting(problem, "ZB-H1", orders)


BASELINES: dict[str, Callable[[Problem], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved-1f1b": interleaved_1f1b,
    "coarse-optimus": coarse_optimus,
    "static": static_plan,
    "zb-h1": zb_h1,
}
"""Every baseline by name."""


def _fitting(problem: Problem, name: str, make: Callable[[Arrays], Orders]) -> Schedule:
    """The baseline with first choices, else with the leanest where only those fit into memory."""
    base = arrays_of(problem)
    attempts = dict.fromkeys([(0,) * len(problem.pairs), leanest(problem)])
    reason = ""
    for choices in attempts:
        arrays = base.with_choices(choices)
        try:
            orders = make(arrays)
            starts(arrays, orders)
        except (BaselineError, ScheduleError) as error:
            raise BaselineError(f"{name} cannot apply: {error}") from error
        except InfeasibleError as error:
            reason = error.reason
            continue
        if fits(arrays, orders):
            return schedule_of(arrays, orders, choices)
        needed = peaks(arrays, orders)
        rank = int(np.argmax(np.array(needed) - arrays.capacity))
        reason = f"needs {needed[rank]:g} on rank {rank}, whose capacity is {arrays.capacity[rank]:g}"
    raise BaselineError(f"{name} cannot apply: {reason}")


def _by_rank(arrays: Arrays, sequence: Ints) -> Orders:
    return [sequence[arrays.rank[sequence] == rank].tolist() for rank in range(arrays.ranks)]
