"""Where every rank gets its plan from: the leader decides, publishes one record a step, and all run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ds_dip.costs.corrections import Corrections
from ds_dip.data import SampleMetadata
from ds_dip.planner.adopted import Adopted
from ds_dip.planner.record import StepPlan
from ds_dip.planner.times import MeasuredStep

#: What a record starts with: a plan, or the sentence why there is none.
PLAN, REFUSAL = b"P", b"E"


class PlanSourceError(RuntimeError):
    """No plan for this step, on any rank; the message is the leader's."""


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """Counts of a run so far.

    ``hits`` are plans that were there when they were asked for, ``reused`` those of an equal batch.
    ``fallbacks`` are counted by cause (see ``client.CAUSES``), ``reasons`` are the newest of them.
    ``waited`` are seconds spent waiting for plans or making fallbacks, ``plan_seconds`` and ``lead``
    medians: how long a plan took to make, and how many steps beyond the current one were planned.
    ``tracking`` says whether the planner is told of every step, which takes ``tracking_seconds`` each.
    """

    steps: int = 0
    planned: int = 0
    hits: int = 0
    reused: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    restarts: int = 0
    refused: int = 0
    dropped: int = 0
    plan_seconds: float = 0.0
    lead: float = 0.0
    waited: float = 0.0
    tracking: bool = False
    tracking_seconds: float = 0.0


class PlanSource(Protocol):
    """A rank's plans, step by step; every rank of a pipeline makes the same calls."""

    def next(self, step: int) -> StepPlan:
        """The plan of a training step; PlanSourceError or ChannelError where there is none."""
        ...

    def evaluation(self, samples: Sequence[SampleMetadata]) -> StepPlan:
        """A forward-only plan over these samples; errors as for ``next``."""
        ...

    def tell(self, coming: Callable[[StepPlan], None]) -> None:
        """Call this, in any thread, with plans that are known before they are asked for."""
        ...

    def measured(self, step: MeasuredStep) -> None:
        """Tell what the newest training step took."""
        ...

    def resume(self, corrections: Corrections | None) -> None:
        """A saved run is continued: the next step may be any, and a leader corrects by these (None: by nothing)."""
        ...

    def adopt(self, adopted: Adopted) -> None:
        """Assign samples by these costs, every step by its own; all replicas' sources are told the same."""
        ...

    def statistics(self) -> SourceStatistics:
        """Counts so far; a follower knows steps, kinds and waiting only."""
        ...

    def close(self) -> None:
        """End the planner's process, if there is one."""
        ...


class PassedOn:
    """A source in front of another one, which hears of everything but of what steps took."""

    def __init__(self, inner: PlanSource) -> None:
        self._inner = inner

    def next(self, step: int) -> StepPlan:
        """See PlanSource."""
        return self._inner.next(step)

    def evaluation(self, samples: Sequence[SampleMetadata]) -> StepPlan:
        """See PlanSource."""
        return self._inner.evaluation(samples)

    def tell(self, coming: Callable[[StepPlan], None]) -> None:
        """See PlanSource."""
        self._inner.tell(coming)

    def measured(self, step: MeasuredStep) -> None:
        """Nothing."""

    def resume(self, corrections: Corrections | None) -> None:
        """See PlanSource."""
        self._inner.resume(corrections)

    def adopt(self, adopted: Adopted) -> None:
        """See PlanSource."""
        self._inner.adopt(adopted)

    def statistics(self) -> SourceStatistics:
        """See PlanSource."""
        return self._inner.statistics()

    def close(self) -> None:
        """See PlanSource."""
        self._inner.close()


def step_name(step: int, resumed: int) -> str:
    """A step's record; one that is run again after a resume must not be taken for its earlier one."""
    return f"step {step}, resumed {resumed} times" if resumed else f"step {step}"


def evaluation_name(number: int) -> str:
    """An evaluation's record."""
    return f"evaluation {number}"
