"""A schedule and the times that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """Task ids per rank in running order, and the chosen strategy of every pair of the problem."""

    order: tuple[tuple[int, ...], ...]
    choices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeline:
    """Earliest times of a schedule: start and end by task id, peak memory per rank.

    ``makespan`` is the largest end plus tail; times and memory in the problem's units.
    """

    start: Mapping[int, float]
    end: Mapping[int, float]
    peak_memory: tuple[float, ...]
    makespan: float
