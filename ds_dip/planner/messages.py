"""What a planner's process says to its leader, believed only after it is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ds_dip.costs.corrections import Corrections
from ds_dip.planner.record import PlanError, StepPlan, decode_plan
from ds_dip.planner.verification import OutdatedError
from ds_dip.planner.wire import CORRECTIONS, GarbageError
from ds_dip.planning import PlanningError


@dataclass(frozen=True, slots=True)
class Ready:
    """The process works."""


@dataclass(frozen=True, slots=True)
class Made:
    """A plan, made in ``seconds`` or ``reused`` from an equal batch, and its record."""

    plan: StepPlan
    record: bytes
    seconds: float
    reused: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """A step that cannot be planned, and why."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Outdated:
    """A plan that was made before the process knew by what costs its step is assigned; it will make another."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Corrections learned since the process was told to begin anew for the ``generation``-th time.

    Without a window, they rest on the measurements of those before.
    ``tracking`` says whether it wants to be told of every step.
    """

    corrections: Corrections
    generation: int
    tracking: bool


Message = Ready | Made | Outdated | Failed | Learned


def read_message(message: list[Any], verify: Callable[[StepPlan], None]) -> Message:
    """A message's content; GarbageError, CodecError or PlanError for what must not be believed.

    ``verify`` checks a plan (see ``Verifier.check``); one that it cannot tell of is a step that failed.
    """
    match message:
        case ["ready"]:
            return Ready()
        case ["failed", int(step), str(reason)]:
            return Failed(step, reason)
        case ["corrections", bytes(learned), int(generation), bool(tracking)]:
            return Learned(CORRECTIONS.decode(learned), generation, tracking)
        case ["plan", int(step), float(seconds), bool(reused), bytes(record)]:
            plan = decode_plan(record)
            if plan.step != step or plan.kind != "planned":
                raise PlanError(f"the plan of step {step} says that it is of step {plan.step} and {plan.kind}")
            try:
                verify(plan)
            except OutdatedError:
                return Outdated()
            except PlanningError as error:
                return Failed(step, f"its leader cannot check the plan: {error}")
            return Made(plan, record, seconds, reused)
        case _:
            raise GarbageError(f"a message is {repr(message)[:80]}, expected ready, a plan, a failure or corrections")
