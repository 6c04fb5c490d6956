"""The planner's core, the same in its own process and in a leader's: a step -> a checked StepPlan."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ds_dip.costs.corrections import CorrectedCosts, Corrections, Measurement
from ds_dip.costs.model import CostModel
from ds_dip.costs.rules import base_costs, with_rules
from ds_dip.costs.strategies import stage_costs
from ds_dip.data import Dataset, SampleMetadata
from ds_dip.planner.batches import Batches
from ds_dip.planner.fitting import within_memory
from ds_dip.planner.ordering import Orderer, Ordering, fastest, searched
from ds_dip.planner.record import StageTime, StepPlan, seal
from ds_dip.planner.settings import PlannerSettings
from ds_dip.planner.splitting import Splitter
from ds_dip.planner.times import StageSeconds
from ds_dip.planning import build_problem
from ds_dip.planning.batch import Batch
from ds_dip.planning.cut import PlanningError
from ds_dip.programs import compile_programs, memory, peaks, replay
from ds_dip.programs.program import stages_of
from ds_dip.scheduling import BaselineError, InfeasibleError, Problem, ProblemError, Schedule, lower_bound, retime

#: Plans kept for batches that are equal to an earlier one.
_KEPT = 32
#: Schedules that the two searches behind an estimate of what corrections bring score at most, each.
_PROBE = 300


class Planner:
    """Makes the plans of one replica from metadata alone.

    ``plan`` without a budget and ``evaluation`` are deterministic in the settings, the corrections and the samples
    where the settings are not paced. ``reused`` says whether the last plan is that of an equal batch.
    """

    def __init__(self, settings: PlannerSettings, dataset: Dataset | None = None) -> None:
        self.settings = settings
        self.corrections = Corrections()
        self.dataset = settings.dataset.open() if dataset is None else dataset
        self.base = base_costs(settings.model, settings.rates, settings.table, settings.partition)
        self.costs: CostModel = with_rules(self.base, settings.model, settings.rules)
        self.batches = Batches(settings, self.dataset, self.costs)
        self.reused = False
        self._chunks = {(chunk.module, chunk.start): chunk for chunk in settings.partition.chunks}
        self._splitter = Splitter(settings)
        self._orderer = Orderer(
            settings.schedule,
            self._splitter.evaluations,
            workers=settings.workers,
            seed=settings.seed,
            paced=settings.paced,
        )
        self._made: OrderedDict[tuple[object, ...], tuple[StepPlan, Ordering]] = OrderedDict()

    def plan(self, step: int, budget: float | None = None) -> StepPlan:
        """The plan of a step by the settings' schedule; with a ``budget`` its search ends after so many seconds.

        A batch whose microbatches have the sizes of an earlier one's takes over its programs; if time had cut the
        search for them short, it goes on from there.
        Raises PlanningError for a batch that cannot be planned, BaselineError where the schedule
        does not apply, and InfeasibleError where no schedule fits into memory.
        """
        batch = self.batches.of(step)
        key = (shape_of(batch), *self.corrections.applied)
        known = self._made.get(key)
        self.reused = known is not None and known[1].whole
        if known is not None and self.reused:
            self._made.move_to_end(key)
            return seal(replace(known[0], step=step, batch=batch))
        problem = self._problem(batch)
        start = None if known is None else known[1].schedule
        if budget is not None and self.settings.memory_capacity is not None:
            budget /= 2  # messages may want a second search
        with _Memory(step, self.settings):
            try:
                plan, ordering = within_memory(
                    problem,
                    lambda own: self._orderer.order(own, self._splitter.time(budget), start),
                    lambda own, found: self._compiled(batch, *self._splitter.split(own, batch, found, budget)),
                )
            except InfeasibleError:
                # Where messages hardly fit, an order without a search may, that leaves other room.
                plan, ordering = self._fast(batch, problem)
        self._made[key] = plan, ordering
        if len(self._made) > _KEPT:
            self._made.popitem(last=False)
        return plan

    def fallback(self, step: int, reason: str) -> StepPlan:
        """What the settings' schedule gives without search, or "dip" where it does not apply; errors as for ``plan``.

        Made in milliseconds, and the same as ``plan`` where that does not search either.
        """
        batch = self.batches.of(step)
        with _Memory(step, self.settings):
            return self._fast(batch, self._problem(batch), reason)[0]

    def evaluation(self, number: int, samples: Sequence[SampleMetadata]) -> StepPlan:
        """A plan of forwards only over given samples, shared among the replicas; errors as for ``plan``."""
        batch = self.batches.share(number, samples)
        with _Memory(number, self.settings):
            return self._fast(batch, self._problem(batch, forward_only=True))[0]

    def measurements(self, batch: Batch, measured: Iterable[StageSeconds]) -> list[Measurement]:
        """Measured seconds of a batch's stages beside their uncorrected predictions."""
        chunks = {(chunk.module, chunk.index): chunk for chunk in self.settings.partition.chunks}
        found = []
        for item in measured:
            stage = item.stage
            chunk = chunks[stage.module, stage.chunk]
            sizes = batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
            (own,) = stage_costs(
                self.costs, self.settings.model, stage.module, chunk.start, chunk.stop, sizes,
                inputs=0.0, compute=self.settings.rates.compute, strategies=(item.strategy,),
            )  # fmt: skip
            predicted = own.forward if stage.kind == "F" else own.backward
            # Costs are a rank's busy time: what it does around a stage is not in the measured seconds.
            around = self.base.around(stage.kind, stage.module, chunk.start, chunk.stop, sizes)
            tokens = sum(sizes.tokens)
            found.append(Measurement(stage.module, stage.kind, predicted, item.seconds + around, chunk.rank, tokens))
        return found

    def benefit(self, step: int) -> float:
        """Seconds by which the order of a step is better for knowing what single ranks and shapes deviate.

        Both orders are searched alike, and timed under all corrections. Errors as for ``plan``.
        """
        settings, batch = self.settings, self.batches.of(step)
        problem, plain = self._problem(batch), self._problem(batch, corrections=self.corrections.plain)

        def order(of: Problem) -> Schedule:
            return searched(of, settings.schedule, min(_PROBE, settings.evaluations), seed=settings.seed).schedule

        return retime(problem, order(plain)).makespan - retime(problem, order(problem)).makespan

    def _fast(self, batch: Batch, problem: Problem, reason: str = "") -> tuple[StepPlan, Ordering]:
        """What the settings' schedule gives without search, or "dip" where it does not apply."""

        def by(schedule: str) -> tuple[StepPlan, Ordering]:
            return within_memory(
                problem,
                lambda own: Ordering(*fastest(own, schedule), lower_bound(own)[0]),
                lambda own, found: self._compiled(batch, own, found, reason),
            )

        try:
            return by(self.settings.schedule)
        except BaselineError:
            return by("dip")

    def _problem(self, batch: Batch, *, forward_only: bool = False, corrections: Corrections | None = None) -> Problem:
        settings = self.settings
        return build_problem(
            batch,
            settings.model,
            settings.partition,
            CorrectedCosts(self.costs, corrections or self.corrections, self._chunks),
            compute=settings.rates.compute,
            forward_only=forward_only,
            memory_capacity=settings.memory_capacity,
            strategies=settings.strategies,
        )

    def _compiled(self, batch: Batch, problem: Problem, ordering: Ordering, reason: str = "") -> StepPlan:
        settings, timeline = self.settings, ordering.timeline
        programs = compile_programs(
            problem,
            ordering.schedule.order,
            [timeline.start[task.id] for task in problem.tasks],
            [timeline.end[task.id] for task in problem.tasks],
            batch,
            settings.model,
            settings.partition,
            link_depth=settings.link_depth,
            strategies=self._strategies(problem, ordering.schedule),
        )
        replay(programs)
        held = memory(
            programs, problem, ordering.schedule.choices, batch, settings.model, settings.partition,
            settings.rates.compute,
        )  # fmt: skip
        stages = tuple(
            tuple(
                StageTime(stage, timeline.start[task], timeline.end[task])
                for stage, task in zip(stages_of(program), ordering.schedule.order[program.rank], strict=True)
            )
            for program in programs
        )
        return seal(
            StepPlan(
                step=batch.step,
                kind="fallback" if reason else "planned",
                reason=reason,
                schedule=ordering.name,
                batch=batch,
                programs=programs,
                stages=stages,
                makespan=timeline.makespan,
                iteration=self.corrections.iteration(timeline.makespan, self.base.iteration(timeline.makespan)),
                lower_bound=ordering.bound,
                peak_memory=peaks(held),
                corrections=replace(self.corrections, window=()),
            )
        )

    def _strategies(self, problem: Problem, schedule: Schedule) -> dict[int, str]:
        """The memory strategies by task; without a choice there is one for all that have a backward."""
        offered = self.settings.strategies
        if len(offered) == 1:
            kinds = {task.id: task.kind for task in problem.tasks}
            own = [(before, after) for before, after, _ in problem.edges if kinds[before] + kinds[after] == "FB"]
            return {task: offered[0] for pair in own for task in pair}
        return {
            task: offered[number]
            for pair, number in zip(problem.pairs, schedule.choices, strict=True)
            for task in (pair.forward, pair.backward)
        }


def shape_of(batch: Batch) -> tuple[object, ...]:
    """What a batch's programs depend on: equal for batches that differ in nothing but their samples."""
    return tuple((tuple(microbatch.sizes.items()), tuple(microbatch.subs.items())) for microbatch in batch.microbatches)


class _Memory:
    """Tells of a step that does not fit under the settings' memory limit, and what to change."""

    def __init__(self, step: int, settings: PlannerSettings) -> None:
        self._step, self._limited = step, settings.memory_capacity is not None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self._limited and isinstance(error, InfeasibleError | ProblemError):
            raise PlanningError(
                f"step {self._step} does not fit into memory: {error}; raise dip.memory_gb (10^9 bytes a rank), make "
                "microbatches smaller, or cut encoders by dip.sub_microbatch"
            ) from error
