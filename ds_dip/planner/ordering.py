"""How a batch's order is found: by one of the schedules without a search, or by a search that is never worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ds_dip.scheduling import (
    BaselineError,
    InfeasibleError,
    Problem,
    Schedule,
    Timeline,
    carry_over,
    interleave,
    interleaved_1f1b,
    lower_bound,
    one_f_one_b,
    retime,
    solve,
)

_Scheduler = Callable[[Problem], Schedule]
#: Per schedule the ways to make it; the fastest by prediction is taken, the first of equals.
SCHEDULES: Mapping[str, tuple[tuple[str, _Scheduler], ...]] = {
    "dip": (("dip", interleave), ("interleaved", interleaved_1f1b), ("1f1b", one_f_one_b)),
    "1f1b": (("1f1b", one_f_one_b),),
    "interleaved": (("interleaved", interleaved_1f1b),),
}
#: Schedules that are the best of a search.
SEARCHED = ("dip",)
#: What a search scores before it changes anything, about: baselines, and orders of the dual queue in both directions.
SEEDS = 30


@dataclass(frozen=True, slots=True)
class Ordering:
    """How a batch is ordered, and what that takes.

    ``name`` says how the order was found. Seconds: ``timeline.makespan``, and the ``bound`` that no
    order is below. ``whole`` is whether the search was not cut short by time.
    """

    name: str
    schedule: Schedule
    timeline: Timeline
    bound: float
    whole: bool = True


class Orderer:
    """Orders the batches of a run, one after the other.

    Settings as ``PlannerSettings`` has them. Where it is ``paced``, a search begins with the order of the batch before;
    otherwise a batch's order depends on nothing else.
    """

    def __init__(
        self, schedule: str, evaluations: int, *, workers: int = 1, seed: int = 0, paced: bool = False
    ) -> None:
        self._schedule, self._evaluations, self._workers = schedule, evaluations, workers
        self._seed, self._paced = seed, paced
        self._last: tuple[Problem, Schedule] | None = None

    def order(self, problem: Problem, budget: float | None = None, start: Schedule | None = None) -> Ordering:
        """Search within ``budget`` seconds, from ``start`` where that is given; errors as for ``searched``."""
        if start is None and self._last is not None:
            start = carry_over(*self._last, problem)
        found = searched(
            problem,
            self._schedule,
            self._evaluations,
            budget=budget,
            seed=self._seed,
            workers=self._workers,
            warm_start=start,
        )
        if self._paced and self._schedule in SEARCHED and self._evaluations:
            self._last = problem, found.schedule
        return found


def searched(
    problem: Problem,
    schedule: str,
    evaluations: int,
    *,
    budget: float | None = None,
    seed: int = 0,
    workers: int = 1,
    warm_start: Schedule | None = None,
) -> Ordering:
    """The best of a search where the schedule has one, else as ``fastest``.

    ``evaluations`` schedules are scored at most, 0 for no search, within ``budget`` seconds on
    ``workers`` threads, the ``warm_start`` first. Errors as for ``fastest``.
    """
    if schedule not in SEARCHED or not evaluations:
        return Ordering(*fastest(problem, schedule), lower_bound(problem)[0])
    found = solve(problem, evaluations=evaluations, budget=budget, seed=seed, workers=workers, warm_start=warm_start)
    if found.schedule is None or found.timeline is None:
        raise InfeasibleError(str(found.reason), found.sufficient_capacity or ())
    whole = found.status == "optimal" or budget is None or found.seconds < budget
    return Ordering(schedule, found.schedule, found.timeline, found.lower_bound, whole)


def fastest(problem: Problem, schedule: str) -> tuple[str, Schedule, Timeline]:
    """(name, order, times) of the fastest way to make a schedule (see ``SCHEDULES``).

    Raises BaselineError where none applies, InfeasibleError where nothing fits into memory.
    """
    best: tuple[str, Schedule, Timeline] | None = None
    refusal: BaselineError | None = None
    for name, make in SCHEDULES[schedule]:
        try:
            order = make(problem)
        except BaselineError as error:
            refusal = error
            continue
        timeline = retime(problem, order)
        if best is None or timeline.makespan < best[2].makespan:
            best = name, order, timeline
    if best is None:
        assert refusal is not None
        raise refusal
    return best


def schedulers(
    schedule: str, evaluations: int, seed: int = 0
) -> tuple[Callable[[Problem], tuple[str, Schedule, Timeline]], Callable[[Problem], tuple[str, Schedule, Timeline]]]:
    """Two ways to schedule a batch outside of a run: about without a search, and as a planner does with time enough.

    Where stages have a choice of memory strategies the first is what a search begins with: which strategies are best
    depends on orders that no single way to make one finds.
    """

    def begun(problem: Problem) -> tuple[str, Schedule, Timeline]:
        if not problem.pairs:
            return fastest(problem, schedule)
        found = searched(problem, schedule, min(evaluations, SEEDS), seed=seed)
        return found.name, found.schedule, found.timeline

    def best(problem: Problem) -> tuple[str, Schedule, Timeline]:
        found = searched(problem, schedule, evaluations, seed=seed)
        return found.name, found.schedule, found.timeline

    return begun, best
