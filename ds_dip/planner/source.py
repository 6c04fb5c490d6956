"""Where every rank gets its plan from: the leader decides, publishes one record a step, and all run it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from ds_dip.costs.corrections import ITERATION, Corrections, Measurement
from ds_dip.data import SampleMetadata
from ds_dip.planner.channel import Channel
from ds_dip.planner.client import Answer, PlannerClient
from ds_dip.planner.plan import Planner, PlannerSettings
from ds_dip.planner.record import StepPlan, check_plan, decode_plan, encode_plan
from ds_dip.programs.program import Stage

#: Measured stages taken a step; the rest adds little to a robust fit and costs the leader time.
MEASURED = 64
_PLAN, _REFUSAL = b"P", b"E"


class PlanSourceError(RuntimeError):
    """No plan for this step, on any rank; the message is the leader's."""


class MeasuredStage(Protocol):
    """When a stage ran, in seconds of any one clock."""

    @property
    def stage(self) -> Stage:
        """Which stage."""
        ...

    @property
    def start(self) -> float:
        """When it started."""
        ...

    @property
    def end(self) -> float:
        """When it ended."""
        ...


class MeasuredStep(Protocol):
    """What a step took: stages a rank, and seconds of the whole iteration."""

    @property
    def step(self) -> int:
        """Which training step."""
        ...

    @property
    def stages(self) -> Sequence[Sequence[MeasuredStage]]:
        """The stages of every rank."""
        ...

    @property
    def iteration(self) -> float:
        """Seconds of the whole step."""
        ...


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """Counts of a run so far.

    ``fallbacks`` are counted by cause (see ``client.CAUSES``), ``reasons`` are the newest of them.
    ``waited`` are seconds spent waiting for plans or making fallbacks, ``plan_seconds`` and ``lead``
    medians: how long a plan took to make, and how many steps beyond the current one were planned.
    """

    steps: int = 0
    planned: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    restarts: int = 0
    refused: int = 0
    dropped: int = 0
    plan_seconds: float = 0.0
    lead: float = 0.0
    waited: float = 0.0


class PlanSource(Protocol):
    """A rank's plans, step by step; every rank of a pipeline makes the same calls."""

    def next(self, step: int) -> StepPlan:
        """The plan of a training step; PlanSourceError or ChannelError where there is none."""
        ...

    def evaluation(self, samples: Sequence[SampleMetadata]) -> StepPlan:
        """A forward-only plan over these samples; errors as for ``next``."""
        ...

    def measured(self, step: MeasuredStep) -> None:
        """Tell what the newest training step took."""
        ...

    def resume(self, corrections: Corrections | None) -> None:
        """A saved run is continued: the next step may be any, and a leader corrects by these (None: by nothing)."""
        ...

    def statistics(self) -> SourceStatistics:
        """Counts so far; a follower knows steps, kinds and waiting only."""
        ...

    def close(self) -> None:
        """End the planner's process, if there is one."""
        ...


class LeaderSource:
    """The first rank of a pipeline: takes plans from the client, else makes them itself, and publishes.

    Without a ``client`` plans are made in this process when they are asked for. ``deadline_s`` is how
    long a step waits for its plan, ``first_deadline_s`` the first one, whose planner is starting.
    ``correct`` fits the predictions to what is measured. Without a ``channel`` nobody else listens.
    """

    def __init__(
        self,
        planner: Planner,
        channel: Channel | None = None,
        client: PlannerClient | None = None,
        *,
        deadline_s: float = 1.0,
        first_deadline_s: float = 30.0,
        correct: bool = True,
    ) -> None:
        self._planner, self._channel, self._client = planner, channel, client
        self._deadline, self._first_deadline, self._correct = deadline_s, first_deadline_s, correct
        self._plan: StepPlan | None = None
        self._pending: list[Measurement] = []
        self._unwarmed = planner.corrections
        self._steps = self._planned = self._evaluations = self._measured = self._resumed = 0
        self._fallbacks: Counter[str] = Counter()
        self._reasons: list[str] = []
        self._seconds: list[float] = []
        self._waited = 0.0

    @property
    def corrections(self) -> Corrections:
        """The corrections that the next plans are made with; they may be set when a run is resumed."""
        return self._planner.corrections

    @corrections.setter
    def corrections(self, corrections: Corrections) -> None:
        self._unwarmed = corrections
        self._use(corrections)

    def next(self, step: int) -> StepPlan:
        """The step's plan, or the fallback; published before it is returned."""
        began = time.perf_counter()
        name = _step_name(step, self._resumed)
        with _Told(self._channel, name):
            answer = self._ask(step)
            if answer.plan is None:
                self._fallbacks[answer.cause] += 1
                self._reasons = [*self._reasons, f"step {step}: {answer.reason}"][-16:]
                plan = self._planner.fallback(step, answer.reason)
            else:
                plan = answer.plan
                self._planned += 1
        self._publish(name, answer.record, plan)
        self._steps += 1
        self._waited += time.perf_counter() - began
        self._plan = plan
        return plan

    def evaluation(self, samples: Sequence[SampleMetadata]) -> StepPlan:
        """A forward-only plan, made in this process."""
        number, self._evaluations = self._evaluations, self._evaluations + 1
        with _Told(self._channel, _evaluation_name(number)):
            plan = self._planner.evaluation(number, samples)
        self._publish(_evaluation_name(number), b"", plan)
        return plan

    def measured(self, step: MeasuredStep) -> None:
        """Correct the predictions by the newest step: at the first steps at once, later every 16 by four of them.

        What the first step took, in which much happens for the first time, is forgotten after the second.
        """
        plan = self._plan
        if not self._correct or plan is None or plan.step != step.step:
            return
        self._measured += 1
        if self._measured <= 4 or self._measured % 4 == 0:
            self._pending += self._planner.measurements(plan, _some(step.stages, self._measured))
        self._pending.append(Measurement("", ITERATION, plan.makespan, step.iteration))
        if self._measured <= 4 or self._measured % 16 == 0:
            known = self._unwarmed if self._measured == 2 else self.corrections
            self._use(known.updated(self._pending))
            self._pending = []

    def resume(self, corrections: Corrections | None) -> None:
        """Continue a saved run with its corrections; records of steps that are run again get new names."""
        self._resumed += 1
        self._plan, self._pending, self._measured = None, [], 0
        self.corrections = corrections or Corrections()

    def statistics(self) -> SourceStatistics:
        """Counts so far."""
        client = None if self._client is None else self._client.statistics()
        return SourceStatistics(
            steps=self._steps,
            planned=self._planned,
            fallbacks=dict(self._fallbacks),
            reasons=tuple(self._reasons),
            restarts=client.restarts if client else 0,
            refused=client.refused if client else 0,
            dropped=client.dropped if client else 0,
            plan_seconds=client.plan_seconds if client else median(self._seconds or [0.0]),
            lead=client.lead if client else 0.0,
            waited=self._waited,
        )

    def close(self) -> None:
        """End the planner's process."""
        if self._client is not None:
            self._client.close()

    def _use(self, corrections: Corrections) -> None:
        self._planner.corrections = corrections
        if self._client is not None:
            self._client.correct(corrections)

    def _ask(self, step: int) -> Answer:
        if self._client is not None:
            return self._client.take(step, self._deadline if self._steps else self._first_deadline)
        began = time.perf_counter()
        try:
            plan = self._planner.plan(step)
        except ValueError as error:
            return Answer(cause="failed", reason=f"step {step} could not be planned: {error}")
        self._seconds = [*self._seconds, time.perf_counter() - began][-256:]
        return Answer(plan)

    def _publish(self, name: str, record: bytes, plan: StepPlan) -> None:
        if self._channel is not None:
            self._channel.publish(name, _PLAN + (record or encode_plan(plan)))


class FollowerSource:
    """Every other rank of a pipeline: reads what its leader publishes, within ``deadline_s``."""

    def __init__(self, settings: PlannerSettings, channel: Channel, *, deadline_s: float = 120.0) -> None:
        self._settings, self._channel, self._deadline = settings, channel, deadline_s
        self._steps = self._planned = self._evaluations = self._resumed = 0
        self._waited = 0.0

    def next(self, step: int) -> StepPlan:
        """The leader's plan of the step."""
        began = time.perf_counter()
        plan = self._read(_step_name(step, self._resumed), step)
        self._steps += 1
        self._planned += plan.kind == "planned"
        self._waited += time.perf_counter() - began
        return plan

    def evaluation(self, samples: Sequence[SampleMetadata]) -> StepPlan:
        """The leader's plan for these samples; refused where the leader was given others."""
        number, self._evaluations = self._evaluations, self._evaluations + 1
        plan = self._read(_evaluation_name(number), number)
        known = {sample.id for sample in samples}
        if odd := [s.id for microbatch in plan.batch.microbatches for s in microbatch.samples if s.id not in known]:
            raise PlanSourceError(
                f"the leader evaluates sample {odd[0]!r}, which this rank was not given: "
                "give all ranks the same samples"
            )
        return plan

    def measured(self, step: MeasuredStep) -> None:
        """Nothing: the leader has measured the same."""

    def resume(self, corrections: Corrections | None) -> None:
        """Read records of the continued run from now on."""
        self._resumed += 1

    def statistics(self) -> SourceStatistics:
        """Counts so far."""
        fallbacks = {"published": self._steps - self._planned} if self._steps > self._planned else {}
        return SourceStatistics(steps=self._steps, planned=self._planned, fallbacks=fallbacks, waited=self._waited)

    def close(self) -> None:
        """Nothing to end."""

    def _read(self, name: str, step: int) -> StepPlan:
        record = self._channel.read(name, self._deadline)
        if record[:1] == _REFUSAL:
            raise PlanSourceError(record[1:].decode(errors="replace"))
        plan = decode_plan(record[1:])
        if plan.step != step:
            raise PlanSourceError(f"the leader published step {plan.step} as {name!r}")
        check_plan(plan, self._settings.model, self._settings.partition)
        return plan


class _Told:
    """Publishes what goes wrong inside, so that no rank waits for a plan that will not come."""

    def __init__(self, channel: Channel | None, name: str) -> None:
        self._channel, self._name = channel, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or not isinstance(error, Exception):
            return
        sentence = f"{self._name} cannot be planned: {error}"
        if self._channel is not None:
            self._channel.publish(self._name, _REFUSAL + sentence.encode())
        raise PlanSourceError(sentence) from error


def _step_name(step: int, resumed: int) -> str:
    """A step's record; one that is run again after a resume must not be taken for its earlier one."""
    return f"step {step}, resumed {resumed} times" if resumed else f"step {step}"


def _evaluation_name(number: int) -> str:
    return f"evaluation {number}"


def _some(stages: Iterable[Sequence[MeasuredStage]], turn: int) -> list[tuple[Stage, float]]:
    """(stage, seconds) of at most ``MEASURED`` stages, evenly over all ranks and the whole step, others each turn."""
    everything = [(item.stage, max(0.0, item.end - item.start)) for rank in stages for item in rank]
    every = -(-len(everything) // MEASURED) or 1
    return everything[turn % every :: every]
