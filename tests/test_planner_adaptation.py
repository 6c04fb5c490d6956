"""Adaptation: plans follow a rank or a shape that becomes slow, and tracking ends where it does not pay."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ds_dip.costs.corrections import Corrections
from ds_dip.planner import Planner, PlannerSettings, StageTime
from ds_dip.planner.adaptation import FIRST, PROBED, Adaptation
from ds_dip.planner.times import VERSION, StageSeconds, StepTimes, step_times
from ds_dip.programs.program import Stage
from tests.planner_cases import drawn, settings
from tests.test_planner_times import Measured

Slow = Callable[[int, Stage, int], float]


class Run:
    """Steps of a made-up machine on which a stage takes twice its prediction, times ``slow(rank, stage, tokens)``."""

    def __init__(self, own: PlannerSettings | None = None) -> None:
        self.planner = Planner(own or settings())
        self.truth = Planner(own or settings())
        self.adaptation = Adaptation(self.planner)
        self.noise = random.Random(0)

    def step(self, number: int, slow: Slow, cost: float = 0.0) -> float:
        """Run a step and tell of it; how far its slow stages (without any: all) were off their predictions."""
        plan = self.planner.plan(number)
        static = {time.stage: time.end - time.start for rank in self.truth.plan(number).stages for time in rank}
        stages: list[tuple[StageTime, ...]] = []
        errors: dict[bool, list[float]] = {True: [], False: []}
        for rank, times in enumerate(plan.stages):
            row = []
            for time in times:
                sizes = plan.batch.microbatches[time.stage.microbatch].sub_sizes(time.stage.module, time.stage.sub)
                factor = slow(rank, time.stage, sum(sizes.tokens))
                seconds = 2 * static[time.stage] * factor * self.noise.lognormvariate(0, 0.02)
                errors[factor != 1.0].append(abs(seconds / max(time.end - time.start, 1e-12) - 1))
                row.append(StageTime(time.stage, 0.0, seconds))
            stages.append(tuple(row))
        measured = Measured(number, tuple(stages), 2 * plan.makespan)
        self.adaptation.take(step_times(plan, measured, number, cost))
        self.adaptation.probe(number)
        counted = errors[True] or errors[False]
        return sum(counted) / len(counted)


def steady(rank: int, stage: Stage, tokens: int) -> float:
    return 1.0


def slow_rank(rank: int, stage: Stage, tokens: int) -> float:
    return 2.5 if rank == 1 else 1.0


def slow_shape(rank: int, stage: Stage, tokens: int) -> float:
    return 3.0 if stage.module == "vision" and tokens > 30 else 1.0


@pytest.mark.parametrize(("slow", "batches"), [(slow_rank, 3), (slow_shape, 12)])
def test_plans_follow_within_a_few_batches_and_back(slow: Slow, batches: int) -> None:
    """A shape has to come up some times, which for the rarest here takes a dozen batches."""
    run = Run()
    for step in range(20):
        before = run.step(step, steady)
    assert before < 0.05
    assert run.planner.corrections.ranks == ()
    errors = [run.step(step, slow) for step in range(20, 40)]
    assert errors[0] > 0.4
    assert max(errors[batches:]) < 0.08
    after = [run.step(step, steady) for step in range(40, 60)]
    assert max(after[batches:]) < 0.08


def test_lines_are_not_moved_by_what_deviates() -> None:
    run = Run()
    for step in range(20):
        run.step(step, steady)
    lines = {fit.module + fit.kind: fit.factor for fit in run.planner.corrections.fits if fit.module}
    for step in range(20, 90):
        run.step(step, slow_rank)
    assert {fit.module + fit.kind: fit.factor for fit in run.planner.corrections.fits if fit.module} == {
        name: pytest.approx(factor, rel=0.1) for name, factor in lines.items()
    }
    assert [(item.rank, item.factor) for item in run.planner.corrections.ranks] == [(1, pytest.approx(2.5, rel=0.1))]


def test_tracking_is_on_as_long_as_it_brings_more_than_it_costs() -> None:
    run = Run()
    for step in range(FIRST + 2):
        run.step(step, steady)
    assert not run.adaptation.tracking, "nothing deviates"
    for step in range(20, 20 + 5 * PROBED):
        run.step(step, slow_rank)
    brought = run.adaptation.benefit
    assert brought > 0
    assert run.adaptation.tracking
    run.step(70, slow_rank, cost=2 * brought)
    assert not run.adaptation.tracking, "it costs more than it brings"
    assert run.planner.corrections.ranks, "what is known stays in use"
    for step in range(72, 100):
        run.step(step, steady)
    assert (run.adaptation.benefit, run.adaptation.tracking) == (0.0, False)


def test_what_knowing_brings_is_what_the_orders_differ_by() -> None:
    planner = Planner(settings(evaluations=200))
    assert planner.benefit(0) == 0.0, "without corrections both orders are the same"


def test_a_run_begun_anew_knows_nothing() -> None:
    run = Run()
    for step in range(30):
        run.step(step, slow_rank)
    assert run.planner.corrections.ranks
    run.adaptation.reset(Corrections())
    assert run.planner.corrections == Corrections()
    assert run.adaptation.benefit == 0.0
    assert run.step(0, steady) > 0.4


def test_a_stage_that_the_batch_does_not_have_is_refused() -> None:
    run = Run()
    odd = StageSeconds(Stage("F", "audio", 0, 0, 0), 1.0)
    with pytest.raises(ValueError, match="step 3 was measured with a stage that it does not have"):
        run.adaptation.take(StepTimes(VERSION, 3, 1.0, 1.0, 0.0, (odd,)))


def test_a_step_whose_samples_cannot_be_read_says_nothing() -> None:
    run = Run(settings({"broken": drawn(1)[0]}))
    times = step_times(run.truth.plan(0), Measured(0, run.truth.plan(0).stages, 1.0), 0, 0.0)
    assert not run.adaptation.take(replace(times, step=1))
    assert run.planner.corrections == Corrections()
