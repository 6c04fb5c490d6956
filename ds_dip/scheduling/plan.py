"""A plan: a schedule with its times, bound and how it was found (``ds-dip/plan`` 1)."""

from __future__ import annotations

from dataclasses import dataclass

OPTIMAL_GAP = 1e-9
"""A plan whose gap is at most this is optimal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An answer to a problem. ``tasks`` are (id, start, end); an infeasible plan has none, but a reason."""

    problem_sha256: str
    status: str
    makespan: float
    lower_bound: float
    gap: float
    evaluations: int
    seconds: float
    seed: int
    tasks: tuple[tuple[int, float, float], ...]
    order: tuple[tuple[int, ...], ...]
    choices: tuple[int, ...]
    reason: str | None = None
    sufficient_capacity: tuple[float | None, ...] | None = None
