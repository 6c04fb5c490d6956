"""The schedules of other systems on the same problem; each is refused with a reason where it cannot apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ds_dip.scheduling.arrays import Arrays, arrays_of
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
from ds_dip.scheduling.timing import Orders, by_rank, first_come, fits, levels, makespan_of, peaks, schedule_of

FORWARD, WEIGHT = 0, 2


def gpipe(problem: Problem) -> Schedule:
    """GPipe: all forwards of the batch, then all backwards."""
    return fitted(problem, "gpipe").schedule()


def one_f_one_b(problem: Problem) -> Schedule:
    """1F1B: a forward and a backward in turn, and no more microbatches in flight than the pipeline is deep.

    The order is static: it comes from stages of equal length. A microbatch's encoder stages run
    right before its backbone forward; a rank that holds several chunks counts a microbatch once.
    """
    return fitted(problem, "1f1b").schedule()


def interleaved_1f1b(problem: Problem) -> Schedule:
    """Interleaved 1F1B (Megatron-LM) for any number of microbatches and chunks.

    The chunks of a rank, over all modules in data-flow order, are its virtual stages; microbatches
    go through them in groups of one a rank, the last group as small as it comes. All
    sub-microbatches of a module's microbatch share its slot.
    """
    return fitted(problem, "interleaved-1f1b").schedule()


def coarse_optimus(problem: Problem) -> Schedule:
    """Coarse Optimus: all encoder work before the backbone, which then runs 1F1B."""
    return fitted(problem, "coarse-optimus").schedule()


def static_plan(problem: Problem) -> Schedule:
    """A representative plan (nnScaler-like): the first-come order found with every duration replaced
    by the mean of its kind, module and chunk, run with the real ones.
    """
    return fitted(problem, "static").schedule()


def zb_h1(problem: Problem) -> Schedule:
    """ZB-H1-like: 1F1B whose weight gradients (W tasks) come later the later the rank.

    They fill the time in which the last ranks would wait; every rank keeps about as many
    microbatches as the first rank of 1F1B does.
    """
    return fitted(problem, "zb-h1").schedule()


BASELINES: dict[str, Callable[[Problem], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved-1f1b": interleaved_1f1b,
    "coarse-optimus": coarse_optimus,
    "static": static_plan,
    "zb-h1": zb_h1,
}
"""Every baseline by name."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A baseline within memory: orders by position on the arrays of its choices, and its makespan."""

    arrays: Arrays
    orders: Orders
    choices: tuple[int, ...]
    makespan: float

    def schedule(self) -> Schedule:
        """It by task ids."""
        return schedule_of(self.arrays, self.orders, self.choices)


def fitted(problem: Problem, name: str) -> Fitted:
    """A baseline with those choices of :func:`levels` that fit into memory and make it fastest, the first of equals.

    Raises BaselineError, with the reason, where it cannot apply.
    """
    title, make = _MAKERS[name]
    base = arrays_of(problem)
    best: Fitted | None = None
    reason = ""
    for choices in levels(problem):
        arrays = base.with_choices(choices)
        try:
            orders = make(arrays)
            makespan = makespan_of(arrays, orders)
        except (BaselineError, ScheduleError) as error:
            raise BaselineError(f"{title} cannot apply: {error}") from error
        except InfeasibleError as error:
            reason = error.reason
            continue
        if best is not None and makespan >= best.makespan:
            continue
        if fits(arrays, orders):
            best = Fitted(arrays, orders, choices, makespan)
            continue
        needed = peaks(arrays, orders)
        rank = int(np.argmax(np.array(needed) - arrays.capacity))
        reason = f"needs {needed[rank]:g} on rank {rank}, whose capacity is {arrays.capacity[rank]:g}"
    if best is None:
        raise BaselineError(f"{title} cannot apply: {reason}")
    return best


def _one_by_one(arrays: Arrays) -> Orders:
    return list_order(arrays, arrays.priority, in_flight(arrays))


def _coarse(arrays: Arrays) -> Orders:
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
    return by_rank(arrays, np.lexsort([keys, rank_of]))


def _static(arrays: Arrays) -> Orders:
    chunk = stages(arrays)
    total, count = np.bincount(chunk, arrays.duration), np.bincount(chunk)
    return first_come(replace(arrays, duration=(total / np.maximum(count, 1))[chunk], cache={}))


def _zero_bubble(arrays: Arrays) -> Orders:
    if not (arrays.kind == WEIGHT).any():
        raise BaselineError("it needs weight-gradient tasks; split the backwards into B and W")
    return zero_bubble_order(arrays)


_MAKERS: dict[str, tuple[str, Callable[[Arrays], Orders]]] = {
    "gpipe": ("GPipe", breadth_first),
    "1f1b": ("1F1B", _one_by_one),
    "interleaved-1f1b": ("interleaved 1F1B", interleaved_order),
    "coarse-optimus": ("coarse Optimus", _coarse),
    "static": ("static plan", _static),
    "zb-h1": ("ZB-H1", _zero_bubble),
}
