"""The scheduling problem (``ds-dip/problem`` 1) as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("F", "B", "W")


class ProblemError(ValueError):
    """A problem that means nothing: one sentence says what is wrong, where, and what to do."""


class ScheduleError(ValueError):
    """A schedule that does not fit its problem: a task missing, misplaced, or orders in a cycle."""


class InfeasibleError(ValueError):
    """No schedule fits into memory; ``sufficient_capacity`` (per rank) would be enough."""

    def __init__(self, reason: str, sufficient_capacity: tuple[float | None, ...]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sufficient_capacity = sufficient_capacity


@dataclass(frozen=True, slots=True)
class Task:
    """One stage of one (sub-)microbatch: it occupies its rank for exactly ``duration``.

    ``acquire`` is taken from the rank's memory when the task starts, ``release`` given back when
    it ends. ``tail`` is time the batch still needs after the task's end. Identity is everything
    but ``id``; ties in a schedule are broken by identity, never by ``id``.
    """

    id: int
    rank: int
    kind: str
    module: str
    chunk: int
    segment: int
    microbatch: int
    sub: int
    duration: float
    acquire: float = 0.0
    release: float = 0.0
    tail: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One memory strategy of a stage pair (DIP, per-layer memory optimisation)."""

    forward_duration: float
    backward_duration: float
    memory: float
    backward_acquire: float = 0.0
    weight_duration: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A forward, its backward and optionally its weight-gradient task, with their choices."""

    forward: int
    backward: int
    choices: tuple[Choice, ...]
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What a schedule must do: tasks on ranks, edges ``(before, after, delay)`` and capacities.

    Times are seconds and memory is bytes unless the problem is unitless; a capacity of ``None``
    is no limit.
    """

    ranks: int
    memory_capacity: tuple[float | None, ...]
    tasks: tuple[Task, ...]
    edges: tuple[tuple[int, int, float], ...]
    pairs: tuple[Pair, ...] = ()
