"""What is found out about a schedule: its critical path, and a cause for every second in which a rank does nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

#: Every cause of a bubble: what a rank does that has one.
CAUSES: Mapping[str, str] = {
    "ramp-up": "before its first task, which waits for tasks of other ranks",
    "peer": "waits for a task of another rank",
    "transfer": "waits for a message that is on its way",
    "memory": "could do later work, if memory had not kept that or what it needs back",
    "order": "could do later work that fits into memory",
    "imbalance": "waits for a rank that has more to do in all",
    "uneven": "waits for a task that is longer than the same stage of a mean microbatch",
    "ramp-down": "after its last task, while other ranks still work",
    "ending": "reduces gradients and steps the optimizer after its last task",
    "planner": "waits for its plan",
    "data": "waits for samples",
    "late": "could start its next task and does not",
}
#: Why a task on the critical path starts when it does.
REASONS: Mapping[str, str] = {
    "first": "nothing is before it",
    "data": "its input was made then",
    "transfer": "its input arrived then",
    "order": "the task before it on its rank ended then",
    "memory": "the task before it on its rank had to end first for memory",
    "late": "later than anything that it needs",
}


@dataclass(frozen=True, slots=True)
class Link:
    """A task on the critical path; its times, and why it starts when it does (see ``REASONS``).

    ``transfer`` are the seconds of the message that it waits for, ``late`` those for which nothing is a reason: none in
    schedules whose tasks start as early as they can.
    """

    task: int
    rank: int
    start: float
    end: float
    reason: str
    transfer: float = 0.0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Bubble:
    """A time in which a rank runs no task, with its one cause (see ``CAUSES``).

    ``task`` is the one that is blamed: what the rank waits for, or what it could have run; None where there is none.
    """

    rank: int
    start: float
    end: float
    cause: str
    task: int | None = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a schedule takes ``makespan`` seconds; ``work`` are the seconds that each rank runs tasks.

    The critical path goes from time 0 to the end of its last task, ``ending`` seconds before the makespan: that task's
    tail, or in a measured step all that follows. The bubbles of a rank and its work fill the makespan, and no two of
    them overlap. ``ready_work`` is whether it is known which tasks had their input (else there is no bubble for memory
    or order).
    """

    makespan: float
    work: tuple[float, ...]
    critical_path: tuple[Link, ...]
    ending: float
    bubbles: tuple[Bubble, ...]
    measured: bool = False
    ready_work: bool = True

    def sums(self) -> tuple[dict[str, float], ...]:
        """Seconds by cause, of every rank; causes in the order of ``CAUSES``."""
        found: list[dict[str, list[float]]] = [defaultdict(list) for _ in self.work]
        for bubble in self.bubbles:
            found[bubble.rank][bubble.cause].append(bubble.seconds)
        return tuple({cause: math.fsum(own[cause]) for cause in CAUSES if cause in own} for own in found)

    def totals(self) -> dict[str, float]:
        """Seconds by cause, of all ranks together."""
        every = self.sums()
        return {
            cause: math.fsum(own.get(cause, 0.0) for own in every) for cause in CAUSES if any(cause in o for o in every)
        }

    def idle(self, rank: int) -> float:
        """Seconds in which a rank runs no task."""
        return self.makespan - self.work[rank]

    @property
    def bubble(self) -> float:
        """The share of the ranks' time in which they run no task."""
        whole = self.makespan * len(self.work)
        return 1.0 - math.fsum(self.work) / whole if whole else 0.0

    @property
    def length(self) -> float:
        """Seconds along the critical path: its tasks, messages, lateness and ending, which sum to the makespan."""
        parts = [value for own in self.critical_path for value in (own.end - own.start, own.transfer, own.late)]
        return math.fsum([*parts, self.ending])
