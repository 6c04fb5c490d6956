"""Plans within memory: what messages under way take is known only of a compiled plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ds_dip.planner.ordering import Ordering
from ds_dip.planner.record import StepPlan
from ds_dip.scheduling import InfeasibleError, Problem

#: Orders made of a batch, each with less memory than the one before, until messages fit beside it.
_ATTEMPTS = 6


def within_memory(
    problem: Problem, order: Callable[[Problem], Ordering], compiled: Callable[[Problem, Ordering], StepPlan]
) -> tuple[StepPlan, Ordering]:
    """The plan of an order whose peak memory, messages included, is within the problem's capacities.

    Where messages do not fit beside an order, another one is made with as much less, or with less of that where nothing
    fits then. Raises InfeasibleError where that does not help either, and what ``order`` raises.
    """
    limits, reserve = problem.memory_capacity, [0.0] * problem.ranks
    #: A reserve beside which an order was found.
    found = reserve
    for attempt in range(_ATTEMPTS):
        left = tuple(
            None if limit is None else max(0.0, limit - kept) for limit, kept in zip(limits, reserve, strict=True)
        )
        own = replace(problem, memory_capacity=left) if attempt else problem
        try:
            ordering = order(own)
        except InfeasibleError:
            if not attempt:
                raise
            reserve = [(before + now) / 2 for before, now in zip(found, reserve, strict=True)]
            continue
        found = list(reserve)
        plan = compiled(own, ordering)
        most = plan.peak_memory
        over = [0.0 if limit is None else max(0.0, peak - limit) for peak, limit in zip(most, limits, strict=True)]
        if not any(over):
            return plan, ordering
        for rank, excess in enumerate(over):
            # What is too much often suffices; all that lies beside the stages does, as far as orders are alike.
            beside = most[rank] - ordering.timeline.peak_memory[rank]
            reserve[rank] = max(reserve[rank] + excess, beside if attempt and excess else 0.0)
    rank = over.index(max(over))
    raise InfeasibleError(
        f"activations and messages need {most[rank]:g} bytes on rank {rank}, {limits[rank]:g} are allowed", most
    )
