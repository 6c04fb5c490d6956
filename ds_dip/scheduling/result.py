"""What a search answers: the best schedule found, and how good it is at least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ds_dip.scheduling.plan import OPTIMAL_GAP, Plan
from ds_dip.scheduling.schedule import Schedule, Timeline


@dataclass(frozen=True, slots=True)
class Result:
    """A schedule with a bound on what any schedule could reach.

    ``gap`` is makespan / lower_bound - 1; ``status`` is ``optimal`` (gap at most 1e-9),
    ``feasible``, or ``infeasible`` (then no schedule, but ``reason`` and ``sufficient_capacity``).
    ``evaluations`` counts complete schedules scored. ``baselines`` holds the makespan of every
    baseline, or why it was refused. ``curve`` are (seconds, evaluations, makespan) of every
    improvement.
    """

    schedule: Schedule | None
    timeline: Timeline | None
    makespan: float
    lower_bound: float
    bound_name: str
    gap: float
    status: str
    evaluations: int
    seconds: float
    seed: int
    method: str = ""
    reason: str | None = None
    sufficient_capacity: tuple[float | None, ...] | None = None
    baselines: Mapping[str, float | str] = field(default_factory=dict)
    curve: tuple[tuple[float, int, float], ...] = ()

    def plan(self, problem_sha256: str = "") -> Plan:
        """This answer as a ``ds-dip/plan``."""
        tasks: tuple[tuple[int, float, float], ...] = ()
        if self.timeline is not None:
            end = self.timeline.end
            tasks = tuple((task, start, end[task]) for task, start in self.timeline.start.items())
        return Plan(
            problem_sha256=problem_sha256,
            status=self.status,
            makespan=self.makespan,
            lower_bound=self.lower_bound,
            gap=self.gap,
            evaluations=self.evaluations,
            seconds=self.seconds,
            seed=self.seed,
            tasks=tasks,
            order=self.schedule.order if self.schedule else (),
            choices=self.schedule.choices if self.schedule else (),
            reason=self.reason,
            sufficient_capacity=self.sufficient_capacity,
        )


def gap_of(makespan: float, bound: float) -> tuple[float, str]:
    """Gap and status of a makespan over a lower bound."""
    gap = max(0.0, makespan / bound - 1) if bound > 0 else 0.0
    return gap, "optimal" if gap <= OPTIMAL_GAP else "feasible"
