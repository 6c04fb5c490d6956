"""Where a step's measured time parts from what was predicted: stages, waiting, and the end of the batch.

The plan's order is timed again with the stages' measured durations and the predicted transfers. What that changes is
due to the stages; what the step took beyond it is waiting, and the rest is what surrounds the stages. So the parts
sum to the difference of measured and predicted seconds of the iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ds_dip.costs.rules import base_costs, with_rules
from ds_dip.planner.record import StepPlan
from ds_dip.planner.recording import RecordedStep, Run
from ds_dip.programs.program import Stage
from ds_dip.reporting.order import Order
from ds_dip.reporting.timeline import message_bytes

#: Share of the predicted makespan that a stage may be early or late before the step counts as parted from its plan.
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Group:
    """Stages of one kind and module on one rank: how many, their seconds predicted and measured in all.

    ``effect_s`` is what their measured durations change of the makespan where groups get theirs one after another,
    the mean of an order and its reverse; over the groups it sums to the part of the stages.
    """

    rank: int
    kind: str
    module: str
    stages: int
    predicted_s: float
    measured_s: float
    effect_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds for which a stage on the measured critical path started later than it could have.

    It waited for ``source``, whose end it follows on its own rank or whose message it needs (then beyond the
    predicted transfer); None where it is the first of its rank.
    """

    stage: Stage
    rank: int
    source: Stage | None
    source_rank: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """The part of waiting, in seconds that sum to it.

    ``plan_s`` is the wait for the plan and ``begin_s`` what else passed before the first stage. Along the measured
    critical path, ``transfers_s`` is how much later than predicted messages came and ``between_s`` what passed
    between stages of one rank. ``hidden_s``, never above 0, is what would have been waited for anyway: by the measured
    durations alone, another path through the order is so much longer.
    """

    plan_s: float
    begin_s: float
    transfers_s: float
    between_s: float
    hidden_s: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first stage on the measured critical path that ended off its plan by more than ``TOLERANCE``.

    ``late_s`` is by how much it ended late (negative: early), ``started_late_s`` started late, and ``longer_s`` took
    longer; the clock of both is set to 0 at the first stage's start.
    """

    stage: Stage
    rank: int
    late_s: float
    started_late_s: float
    longer_s: float


@dataclass(frozen=True, slots=True)
class Parts:
    """One step, predicted and measured, in seconds; ``difference_s`` is the sum of the four parts after it.

    ``stages_s``: stages took longer or shorter (by ``groups``, the largest effect first). ``waiting_s``: waiting that
    no stage's duration explains (see ``waiting``; ``gaps`` are its largest). ``end_s``: reduction and optimizer's step
    against what was predicted around the stages. ``unexplained_s``: the plan's own makespan against its order timed by
    this version of ds_dip; 0 unless another one recorded it.
    """

    step: int
    kind: str
    reason: str
    schedule: str
    predicted_iteration_s: float
    measured_iteration_s: float
    predicted_makespan_s: float
    measured_makespan_s: float
    retimed_makespan_s: float
    difference_s: float
    stages_s: float
    waiting_s: float
    end_s: float
    unexplained_s: float
    groups: tuple[Group, ...]
    waiting: Waiting
    gaps: tuple[Gap, ...]
    divergence: Divergence | None

    @property
    def error(self) -> float:
        """The predicted iteration against the measured one: below 0 where the step took longer."""
        measured = self.measured_iteration_s
        return self.predicted_iteration_s / measured - 1.0 if measured > 0 else 0.0


class Parting:
    """Takes a run's recorded steps apart.

    Raises CostError where the run's cost rules name a factory that cannot be used here.
    """

    def __init__(self, run: Run) -> None:
        settings = run.settings
        self._compute = settings.rates.compute
        self._base = base_costs(settings.model, settings.rates, settings.table, settings.partition)
        self._costs = with_rules(self._base, settings.model, settings.rules)
        self._chunks = {(chunk.module, chunk.index): chunk for chunk in settings.partition.chunks}

    def parts(self, found: RecordedStep) -> Parts:
        """The parts of a step."""
        return _Step(found, self._around(found), self._delays(found.plan)).parts()

    def _around(self, found: RecordedStep) -> list[float]:
        """Seconds that a rank is predicted to spend on each stage beside what the engine's clock measures of it."""
        seconds, batch = [], found.plan.batch
        for rank in found.stages:
            for stage in (time.stage for time in rank):
                chunk = self._chunks[stage.module, stage.chunk]
                sizes = batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
                seconds.append(self._base.around(stage.kind, stage.module, chunk.start, chunk.stop, sizes))
        return seconds

    def _delays(self, plan: StepPlan) -> dict[tuple[Stage, Stage], float]:
        """The predicted transfer of every message, by the stages that it joins."""
        messages = {message.id: message for program in plan.programs for message in program.messages}
        return {(m.source, m.target): self._costs.transfer(message_bytes(m, self._compute)) for m in messages.values()}


class _Step:
    """A step's stages, numbered along each rank's order, with both sets of times from the first stage's start.

    Edges within a rank are implied by its order, so messages are all that is needed beside it. A stage's measured
    seconds hold what its rank is predicted to spend ``around`` it, as the predicted ones do.
    """

    def __init__(
        self, found: RecordedStep, around: Sequence[float], delays: Mapping[tuple[Stage, Stage], float]
    ) -> None:
        self._found, self._around = found, around
        planned = [time for times in found.plan.stages for time in times]
        measured = [time for times in found.stages for time in times]
        self._shift = min(time.start for time in measured)
        self._planned = [(time.start, time.end) for time in planned]
        self._measured = [(time.start - self._shift, time.end - self._shift) for time in measured]
        self._span = max(end for _, end in self._measured)
        self._predicted_s = np.array([end - start for start, end in self._planned])
        self._measured_s = np.array([end - start for start, end in self._measured]) + np.array(around)
        self._order = Order([[time.stage for time in times] for times in found.stages], delays)
        self._places = self._order.places
        #: Of every stage, what it waits for: the stage before it on its rank, then its messages, with their delays.
        self._sources: list[list[tuple[int, float]]] = [
            [(place - 1, 0.0)] if place and self._places[place - 1][0] == rank else []
            for place, (rank, _) in enumerate(self._places)
        ]
        for source, target, delay in self._order.edges:
            self._sources[target].append((source, delay))

    def parts(self) -> Parts:
        found, plan = self._found, self._found.plan
        as_planned = self._order.makespan(self._predicted_s)
        retimed = self._order.makespan(self._measured_s)
        path = self._path()
        return Parts(
            step=plan.step,
            kind=plan.kind,
            reason=plan.reason,
            schedule=plan.schedule,
            predicted_iteration_s=plan.iteration,
            measured_iteration_s=found.iteration,
            predicted_makespan_s=plan.makespan,
            measured_makespan_s=self._span,
            retimed_makespan_s=retimed,
            difference_s=found.iteration - plan.iteration,
            stages_s=retimed - as_planned,
            waiting_s=self._shift + self._span - retimed,
            end_s=(found.iteration - self._shift - self._span) - (plan.iteration - plan.makespan),
            unexplained_s=as_planned - plan.makespan,
            groups=self._groups(),
            waiting=self._waiting(path, retimed),
            gaps=tuple(sorted(path, key=lambda gap: -abs(gap.seconds))),
            divergence=self._divergence(path),
        )

    def _groups(self) -> tuple[Group, ...]:
        keys = [(rank, stage.kind, stage.module) for rank, stage in self._places]
        names = sorted(set(keys))
        place = np.array([names.index(key) for key in keys])
        # Column k has the first k groups' measured durations, and of the second half the last k groups'.
        count = np.arange(len(names) + 1)
        chosen = np.hstack([place[:, None] < count, place[:, None] >= len(names) - count])
        makespans = self._order.makespans(np.where(chosen, self._measured_s[:, None], self._predicted_s[:, None]))
        forward, reverse = np.diff(makespans[: len(count)]), np.diff(makespans[len(count) :])[::-1]
        found = []
        for number, (rank, kind, module) in enumerate(names):
            own = place == number
            found.append(
                Group(
                    rank,
                    kind,
                    module,
                    int(own.sum()),
                    float(self._predicted_s[own].sum()),
                    float(self._measured_s[own].sum()),
                    float(forward[number] + reverse[number]) / 2,
                )
            )
        return tuple(sorted(found, key=lambda group: -abs(group.effect_s)))

    def _path(self) -> list[Gap]:
        """The measured critical path from its first stage on: every stage with what it waited for last."""
        number: int | None = max(range(len(self._measured)), key=lambda place: self._measured[place][1])
        path = []
        while number is not None:
            start = self._measured[number][0] - self._around[number]
            rank, stage = self._places[number]
            arrivals = [(self._measured[source][1] + delay, source) for source, delay in self._sources[number]]
            if not arrivals:
                path.append(Gap(stage, rank, None, rank, start))
                break
            arrived, number = max(arrivals, key=lambda arrival: arrival[0])
            source_rank, source_stage = self._places[number]
            path.append(Gap(stage, rank, source_stage, source_rank, start - arrived))
        return path[::-1]

    def _waiting(self, path: Sequence[Gap], retimed: float) -> Waiting:
        transfers = sum(gap.seconds for gap in path if gap.source_rank != gap.rank)
        between = sum(gap.seconds for gap in path if gap.source_rank == gap.rank)
        plan = min(self._found.waited, max(0.0, self._shift))
        return Waiting(
            plan_s=plan,
            begin_s=self._shift - plan,
            transfers_s=transfers,
            between_s=between,
            hidden_s=self._span - transfers - between - retimed,
        )

    def _divergence(self, path: Sequence[Gap]) -> Divergence | None:
        number = {stage: place for place, (_, stage) in enumerate(self._places)}
        for gap in path:
            place = number[gap.stage]
            late = self._measured[place][1] - self._planned[place][1]
            if abs(late) > TOLERANCE * self._found.plan.makespan:
                longer = float(self._measured_s[place] - self._predicted_s[place])
                return Divergence(gap.stage, gap.rank, late, late - longer, longer)
        return None
