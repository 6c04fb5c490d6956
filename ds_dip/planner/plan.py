"""The planner's core, the same in its own process and in a leader's: a step -> a checked StepPlan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ds_dip.costs.corrections import CorrectedCosts, Corrections, Measurement
from ds_dip.costs.model import CostModel, sample_seconds
from ds_dip.costs.roofline import Rates
from ds_dip.costs.rules import CostRules, base_costs, with_rules
from ds_dip.costs.table import LatencyTable
from ds_dip.data import Dataset, DatasetReference, SampleMetadata, Sampler
from ds_dip.files import first_line
from ds_dip.models.partition import Partition, check_partition
from ds_dip.models.spec import Model
from ds_dip.planner.record import StageTime, StepPlan, seal, stages_of
from ds_dip.planning import assign, build_problem, cut
from ds_dip.planning.cut import LOSS_RULES, PlanningError, sizes_of
from ds_dip.programs import compile_programs, replay
from ds_dip.programs.program import Stage
from ds_dip.scheduling import (
    BaselineError,
    InfeasibleError,
    Problem,
    ProblemError,
    Schedule,
    Timeline,
    interleave,
    interleaved_1f1b,
    lower_bound,
    one_f_one_b,
    retime,
    solve,
)

_Scheduler = Callable[[Problem], Schedule]
#: Per schedule the ways to make it; the fastest by prediction is taken, the first of equals.
SCHEDULES: Mapping[str, tuple[tuple[str, _Scheduler], ...]] = {
    "dip": (("dip", interleave), ("interleaved", interleaved_1f1b), ("1f1b", one_f_one_b)),
    "1f1b": (("1f1b", one_f_one_b),),
    "interleaved": (("interleaved", interleaved_1f1b),),
}
#: Schedules that are the best of a search.
SEARCHED = ("dip",)
#: Samples of so many different sizes are remembered with their costs.
_SAMPLE_COSTS = 65536


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What a replica's plans depend on, beside the step and the corrections.

    ``batch_size`` samples a global batch and ``seed`` are the sampler's. ``microbatches`` is the
    nominal number a replica. ``schedule`` is one of ``SCHEDULES`` and ``loss`` one of
    ``LOSS_RULES``. ``memory_capacity`` is bytes of activations a rank, None for no limit.
    ``link_depth`` messages of a link are posted ahead, ``ahead`` steps planned ahead. Costs come from the ``table``,
    or from the ``rates`` where there is none, under the user's ``rules``. The search of a batch's order scores at most
    ``evaluations`` schedules, and where it is ``paced`` takes no longer than training leaves it.
    Raises ValueError, naming the setting, for a value that is none.
    """

    model: Model
    partition: Partition
    dataset: DatasetReference
    batch_size: int
    seed: int = 0
    replicas: int = 1
    replica: int = 0
    microbatches: int = 1
    schedule: str = "dip"
    loss: str = "tokens"
    link_depth: int = 4
    memory_capacity: tuple[float | None, ...] | None = None
    rates: Rates = field(default_factory=Rates)
    table: LatencyTable | None = None
    rules: CostRules | None = None
    ahead: int = 2
    evaluations: int = 1000
    paced: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_size", "replicas", "microbatches", "link_depth", "ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if self.evaluations < 0:
            raise ValueError(f"evaluations is {self.evaluations}: give 0 for no search, or more")
        if not 0 <= self.replica < self.replicas:
            raise ValueError(f"replica is {self.replica}: give 0 to {self.replicas - 1}")
        if self.batch_size < self.replicas:
            raise ValueError(
                f"a global batch of {self.batch_size} samples leaves some of {self.replicas} replicas without any: "
                "give at least one sample a replica"
            )
        for name, choices in (("schedule", tuple(SCHEDULES)), ("loss", LOSS_RULES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}: use one of {', '.join(choices)}")
        if self.memory_capacity is not None and len(self.memory_capacity) != self.partition.ranks:
            raise ValueError(
                f"memory_capacity has {len(self.memory_capacity)} values for {self.partition.ranks} ranks: "
                "give one a rank"
            )
        check_partition(self.model, self.partition)


class Planner:
    """Makes the plans of one replica from metadata alone.

    ``plan`` without a budget and ``evaluation`` are deterministic in the settings, the corrections and the samples.
    """

    def __init__(self, settings: PlannerSettings, dataset: Dataset | None = None) -> None:
        self.settings = settings
        self.corrections = Corrections()
        self.dataset = settings.dataset.open() if dataset is None else dataset
        self.sampler = Sampler(len(self.dataset), settings.batch_size, settings.seed)
        self.base = base_costs(settings.model, settings.rates, settings.table, settings.partition)
        self.costs: CostModel = with_rules(self.base, settings.model, settings.rules)
        self._sample_costs: dict[tuple[object, ...], float] = {}

    def plan(self, step: int, budget: float | None = None) -> StepPlan:
        """The plan of a step by the settings' schedule; with a ``budget`` its search ends after so many seconds.

        Raises PlanningError for a batch that cannot be planned, BaselineError where the schedule
        does not apply, and InfeasibleError where no schedule fits into memory.
        """
        return self._plan(step, self._samples(step), self.settings.schedule, search=True, budget=budget)

    def fallback(self, step: int, reason: str) -> StepPlan:
        """What the settings' schedule gives without search, or "dip" where it does not apply; errors as for ``plan``.

        Made in milliseconds, and the same as ``plan`` where that does not search either.
        """
        try:
            return self._plan(step, self._samples(step), self.settings.schedule, reason=reason)
        except BaselineError:
            return self._plan(step, self._samples(step), "dip", reason=reason)

    def evaluation(self, number: int, samples: Sequence[SampleMetadata]) -> StepPlan:
        """A plan of forwards only over given samples, shared among the replicas; errors as for ``plan``."""
        return self._plan(number, samples, self.settings.schedule, forward_only=True)

    def measurements(self, plan: StepPlan, measured: Iterable[tuple[Stage, float]]) -> tuple[Measurement, ...]:
        """Measured seconds of a plan's stages beside their uncorrected predictions."""
        chunks = {(chunk.module, chunk.index): chunk for chunk in self.settings.partition.chunks}
        found = []
        for stage, seconds in measured:
            chunk = chunks[stage.module, stage.chunk]
            sizes = plan.batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
            cost = self.costs.forward if stage.kind == "F" else self.costs.backward
            predicted = cost(stage.module, chunk.start, chunk.stop, sizes)
            # Costs are a rank's busy time: what it does around a stage is not in the measured seconds.
            around = self.base.around(stage.kind, stage.module, chunk.start, chunk.stop, sizes)
            found.append(Measurement(stage.module, stage.kind, predicted, seconds + around))
        return tuple(found)

    def _samples(self, step: int) -> list[SampleMetadata]:
        return [self._metadata(index) for index in self.sampler.indices(step)]

    def _metadata(self, index: int) -> SampleMetadata:
        try:
            return self.dataset.metadata(index)
        except Exception as error:
            raise PlanningError(
                f"the dataset raised {type(error).__name__} ({first_line(error)}) for the metadata of sample {index} "
                f"of {self.sampler.samples}; make metadata() answer for every index below the dataset's length"
            ) from error

    def _plan(
        self,
        step: int,
        samples: Sequence[SampleMetadata],
        schedule: str,
        *,
        reason: str = "",
        forward_only: bool = False,
        search: bool = False,
        budget: float | None = None,
    ) -> StepPlan:
        settings = self.settings
        model, partition = settings.model, settings.partition
        # The static costs, never corrections: every replica must find the same assignment.
        shares = assign(samples, settings.replicas, settings.microbatches, self._sample_cost)
        batch = cut(step, samples, shares[settings.replica], model, partition, loss=settings.loss)
        problem = build_problem(
            batch,
            model,
            partition,
            CorrectedCosts(self.costs, self.corrections),
            compute=settings.rates.compute,
            forward_only=forward_only,
            memory_capacity=settings.memory_capacity,
        )
        try:
            name, order, timeline, bound = self._order(problem, schedule, search, budget)
        except (InfeasibleError, ProblemError) as error:
            if settings.memory_capacity is None:
                raise
            raise PlanningError(
                f"step {step} does not fit into memory: {error}; raise dip.memory_gb (10^9 bytes a rank), make "
                "microbatches smaller, or cut encoders by dip.sub_microbatch"
            ) from error
        programs = compile_programs(
            problem,
            order.order,
            [timeline.start[task.id] for task in problem.tasks],
            [timeline.end[task.id] for task in problem.tasks],
            batch,
            model,
            partition,
            link_depth=settings.link_depth,
        )
        replay(programs)
        stages = tuple(
            tuple(
                StageTime(stage, timeline.start[task], timeline.end[task])
                for stage, task in zip(stages_of(program), order.order[program.rank], strict=True)
            )
            for program in programs
        )
        return seal(
            StepPlan(
                step=step,
                kind="fallback" if reason else "planned",
                reason=reason,
                schedule=name,
                batch=batch,
                programs=programs,
                stages=stages,
                makespan=timeline.makespan,
                iteration=self.corrections.iteration(timeline.makespan, self.base.iteration(timeline.makespan)),
                lower_bound=bound,
                peak_memory=timeline.peak_memory,
            )
        )

    def _order(
        self, problem: Problem, schedule: str, search: bool, budget: float | None
    ) -> tuple[str, Schedule, Timeline, float]:
        """(name, order, times, lower bound)."""
        settings = self.settings
        evaluations = settings.evaluations if search else 0
        return searched(problem, schedule, evaluations, budget=budget, seed=settings.seed)

    def _sample_cost(self, sample: SampleMetadata) -> float:
        key = (*sample.modules.items(), None, *sample.merged.items())
        if key not in self._sample_costs:
            if len(self._sample_costs) >= _SAMPLE_COSTS:
                self._sample_costs.clear()
            sizes = sizes_of([sample], self.settings.model)
            self._sample_costs[key] = sample_seconds(self.settings.model, self.costs, sizes)
        return self._sample_costs[key]


def searched(
    problem: Problem, schedule: str, evaluations: int, *, budget: float | None = None, seed: int = 0
) -> tuple[str, Schedule, Timeline, float]:
    """(name, order, times, lower bound) of the best of a search where the schedule has one, else as ``fastest``.

    ``evaluations`` schedules are scored at most, 0 for no search, within ``budget`` seconds. Errors as
    for ``fastest``.
    """
    if schedule not in SEARCHED or not evaluations:
        return *fastest(problem, schedule), lower_bound(problem)[0]
    found = solve(problem, evaluations=evaluations, budget=budget, seed=seed)
    if found.schedule is None or found.timeline is None:
        raise InfeasibleError(str(found.reason), found.sufficient_capacity or ())
    return schedule, found.schedule, found.timeline, found.lower_bound


def fastest(problem: Problem, schedule: str) -> tuple[str, Schedule, Timeline]:
    """(name, order, times) of the fastest way to make a schedule (see ``SCHEDULES``).

    Raises BaselineError where none applies, InfeasibleError where nothing fits into memory.
    """
    best: tuple[str, Schedule, Timeline] | None = None
    refusal: BaselineError | None = None
    for name, make in SCHEDULES[schedule]:
        try:
            order = make(problem)
        except BaselineError as error:
            refusal = error
            continue
        timeline = retime(problem, order)
        if best is None or timeline.makespan < best[2].makespan:
            best = name, order, timeline
    if best is None:
        assert refusal is not None
        raise refusal
    return best


def schedulers(
    schedule: str, evaluations: int, seed: int = 0
) -> tuple[Callable[[Problem], tuple[str, Schedule, Timeline]], Callable[[Problem], tuple[str, Schedule, Timeline]]]:
    """Two ways to schedule a batch outside of a run: without a search, and as a run's planner does with time enough."""
    return (
        lambda problem: fastest(problem, schedule),
        lambda problem: searched(problem, schedule, evaluations, seed=seed)[:3],
    )
