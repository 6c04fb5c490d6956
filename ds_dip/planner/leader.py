"""The first rank of a pipeline: it decides which plan a step has, and all ranks of the pipeline run it."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from statistics import median

from ds_dip.costs.corrections import Corrections
from ds_dip.costs.model import CostModel
from ds_dip.data import SampleMetadata
from ds_dip.planner.adaptation import EVERY, FIRST, Adaptation
from ds_dip.planner.adopted import Adopted
from ds_dip.planner.ahead import Decided, PublishAhead
from ds_dip.planner.channel import Channel
from ds_dip.planner.client import Answer, PlannerClient
from ds_dip.planner.plan import Planner
from ds_dip.planner.record import StepPlan, encode_plan
from ds_dip.planner.source import PLAN, REFUSAL, PlanSourceError, SourceStatistics, evaluation_name, step_name
from ds_dip.planner.times import MeasuredStep, step_times

#: Times of telling that their median is taken of.
_TELLINGS = 32


class LeaderSource:
    """Takes plans from the client, else makes them itself, and publishes.

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
        self._deadline, self._first_deadline = deadline_s, first_deadline_s
        self._adaptation = Adaptation(planner)
        self._telling = _Telling() if correct else None
        self._ahead = PublishAhead(client, self._publish_ahead) if client is not None and channel is not None else None
        self._coming: Callable[[StepPlan], None] | None = None
        self._plan: StepPlan | None = None
        self._steps = self._planned = self._reused = self._evaluations = self._resumed = 0
        self._fallbacks: Counter[str] = Counter()
        self._reasons: deque[str] = deque(maxlen=16)
        self._seconds: deque[float] = deque(maxlen=256)
        self._waited = 0.0

    @property
    def costs(self) -> CostModel:
        """What plans are made by, before corrections."""
        return self._planner.costs

    @property
    def corrections(self) -> Corrections:
        """The corrections that the next plans are made with; they may be set when a run is resumed."""
        return self._planner.corrections if self._client is None else self._client.corrections

    @corrections.setter
    def corrections(self, corrections: Corrections) -> None:
        self._adaptation.reset(corrections)
        if self._client is not None:
            self._client.correct(corrections)

    def next(self, step: int) -> StepPlan:
        """The step's plan, or the fallback; published before it is returned."""
        began = time.perf_counter()
        decided = None if self._ahead is None else self._ahead.take(step)
        with _Told(self._channel, step_name(step, self._resumed)):
            answer = self._ask(step, decided)
            if answer.plan is None:
                self._fallbacks[answer.cause] += 1
                self._reasons.append(f"step {step}: {answer.reason}")
                self._planner.corrections = self.corrections
                plan = self._planner.fallback(step, answer.reason)
            else:
                plan = answer.plan
                self._planned += 1
        if decided is None or not decided.published:
            self._publish(step, plan, answer.record)
        self._steps += 1
        self._waited += time.perf_counter() - began
        self._plan = plan
        if self._ahead is not None:
            self._ahead.look_for(step + 1)
        return plan

    def evaluation(self, samples: Sequence[SampleMetadata]) -> StepPlan:
        """A forward-only plan, made in this process."""
        number, self._evaluations = self._evaluations, self._evaluations + 1
        name = evaluation_name(number)
        with _Told(self._channel, name):
            self._planner.corrections = self.corrections
            plan = self._planner.evaluation(number, samples)
        if self._channel is not None:
            self._channel.publish(name, PLAN + encode_plan(plan))
        return plan

    def tell(self, coming: Callable[[StepPlan], None]) -> None:
        """See PlanSource; a plan is known once it is published ahead."""
        self._coming = coming

    def measured(self, step: MeasuredStep) -> None:
        """Tell the planner what the newest step took, where it is one that is told of."""
        plan = self._plan
        if self._telling is None or plan is None or plan.step != step.step:
            return
        if self._telling.due(plan, step, self._client is not None and self._client.tracking):
            began = time.perf_counter()
            times = step_times(plan, step, self._telling.told, self._telling.cost)
            if self._client is None:
                self._adaptation.take(times)
            else:
                self._client.measured(times)
            self._telling.took(time.perf_counter() - began)

    def resume(self, corrections: Corrections | None) -> None:
        """Continue a saved run with its corrections; records of steps that are run again get new names."""
        if self._ahead is not None:
            self._ahead.look_for(None)
        self._resumed += 1
        self._plan = None
        if self._telling is not None:
            self._telling = _Telling()
        self.corrections = corrections or Corrections()

    def adopt(self, adopted: Adopted) -> None:
        """See PlanSource; the planner hears of it before it is asked for the next step."""
        self._planner.batches.adopt(adopted)
        if self._client is not None:
            self._client.adopt(adopted)

    def statistics(self) -> SourceStatistics:
        """Counts so far."""
        client = None if self._client is None else self._client.statistics()
        return SourceStatistics(
            steps=self._steps,
            planned=self._planned,
            hits=client.hits if client else 0,
            reused=client.reused if client else self._reused,
            fallbacks=dict(self._fallbacks),
            reasons=tuple(self._reasons),
            restarts=client.restarts if client else 0,
            refused=client.refused if client else 0,
            dropped=client.dropped if client else 0,
            plan_seconds=client.plan_seconds if client else median(self._seconds or [0.0]),
            lead=client.lead if client else 0.0,
            waited=self._waited,
            tracking=self._client is not None and self._client.tracking,
            tracking_seconds=0.0 if self._telling is None else self._telling.cost,
        )

    def close(self) -> None:
        """End the planner's process."""
        if self._ahead is not None:
            self._ahead.close()
        if self._client is not None:
            self._client.close()

    def _ask(self, step: int, decided: Decided | None) -> Answer:
        if self._client is not None:
            if decided is not None:
                # The planner learns from it how far training is.
                self._client.take(step, 0.0)
                return Answer(decided.plan, decided.record)
            return self._client.take(step, self._deadline if self._steps else self._first_deadline)
        began = time.perf_counter()
        try:
            plan = self._planner.plan(step)
        except ValueError as error:
            return Answer(cause="failed", reason=f"step {step} could not be planned: {error}")
        self._reused += self._planner.reused
        self._seconds.append(time.perf_counter() - began)
        return Answer(plan)

    def _publish_ahead(self, step: int, plan: StepPlan, record: bytes) -> None:
        self._publish(step, plan, record)
        if self._coming is not None:
            self._coming(plan)

    def _publish(self, step: int, plan: StepPlan, record: bytes) -> None:
        if self._channel is not None:
            self._channel.publish(step_name(step, self._resumed), PLAN + (record or encode_plan(plan)))


class _Telling:
    """Which steps a planner is told of: the first ones, every fourth, and all of them while that pays or much changes.

    ``told`` counts them, ``cost`` is what telling takes: the median of the newest, in seconds.
    """

    #: A step that takes longer or shorter than it lately did for its prediction, twice in a row, by this factor.
    ODD = 1.1
    #: Steps that are told of after such a change.
    AFTER = 8

    def __init__(self) -> None:
        self.told = 0
        self._odd = self._left = 0
        self._ratios: deque[float] = deque(maxlen=32)
        self._costs: deque[float] = deque(maxlen=_TELLINGS)

    @property
    def cost(self) -> float:
        """Seconds."""
        return median(self._costs) if self._costs else 0.0

    def due(self, plan: StepPlan, step: MeasuredStep, tracking: bool) -> bool:
        """Whether the planner is told of this step."""
        if self._changed(plan, step):
            self._left = self.AFTER
        self._left -= self._left > 0
        due = self.told < FIRST or tracking or self._left > 0 or step.step % EVERY == 0
        self.told += due
        return due

    def took(self, seconds: float) -> None:
        """What telling of one took."""
        self._costs.append(seconds)

    def _changed(self, plan: StepPlan, step: MeasuredStep) -> bool:
        if plan.iteration <= 0 or step.iteration <= 0:
            return False
        ratio = math.log(step.iteration / plan.iteration)
        usual = median(self._ratios) if self._ratios else ratio
        self._odd = self._odd + 1 if abs(ratio - usual) > math.log(self.ODD) else 0
        self._ratios.append(ratio)
        return self._odd >= 2


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
            self._channel.publish(self._name, REFUSAL + sentence.encode())
        raise PlanSourceError(sentence) from error
