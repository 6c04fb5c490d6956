"""What the engine adds to layers is found again in batches that were made with it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ds_dip.costs.composed import TableCosts
from ds_dip.costs.table import LatencyTable
from ds_dip.data import DatasetReference
from ds_dip.partition import make_partition
from ds_dip.planner import Planner, PlannerSettings, StepPlan
from ds_dip.profiling.check import compare_runs
from ds_dip.profiling.engine import Around, with_iterations, with_stages
from ds_dip.profiling.fidelity import report
from ds_dip.profiling.predict import makespan, spread_of
from ds_dip.profiling.rounds import Rounds
from ds_dip.programs.program import Stage
from tests.profiling_cases import row
from tests.test_profiling_session import QUICKSTART as MODEL

PARTITION = make_partition(MODEL, 2, {"vision": 1, "language": 2}, {"vision": 8})
PLANNER = Planner(
    PlannerSettings(
        MODEL, PARTITION, DatasetReference("ds_dip.data.digits:Digits", {"samples": 640}), 32, microbatches=4
    )
)
PLANS = [PLANNER.plan(step) for step in range(12)]
PLAIN = LatencyTable("here", "float32")
ADDED = (row("stage:language", 1e-3, 2e-3), row("first:language", 3e-3), row("stage:vision", 5e-4, 6e-4))
SLOW = {"language/F": 1.5, "language/B": 1.25, "vision/F": 1.0, "vision/B": 2.0}
TRUTH = TableCosts(MODEL, replace(PLAIN, rows=ADDED, slowdown=SLOW), partition=PARTITION)


def ran(plan: StepPlan, costs: TableCosts, batch_end: float = 0.25, stretch: float = 1.1) -> Any:
    """A measured step whose stages take what the costs say."""
    chunks = {(chunk.module, chunk.index): chunk for chunk in PARTITION.chunks}
    ranks = []
    for stages in plan.stages:
        intervals = []
        for timed in stages:
            stage = timed.stage
            chunk = chunks[stage.module, stage.chunk]
            sizes = plan.batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
            seconds = costs.stage(stage.kind, stage.module, chunk.start, chunk.stop, sizes)
            intervals.append(SimpleNamespace(stage=stage, start=0.0, end=seconds))
        ranks.append(tuple(intervals))
    span = stretch * makespan(plan, MODEL, PARTITION, costs, "float32")
    return SimpleNamespace(step=plan.step, stages=tuple(ranks), executed=span, iteration=span + batch_end)


def around(count: int = 20) -> list[Around]:
    stage = Stage("F", "vision", 0, 0, 0)
    loads = [Around("Load", stage, 2 + n % 5, 1e-3 * (2 + n % 5)) for n in range(count)]
    return [*loads, *(Around("PostSend", stage, 1, 1e-4) for _ in range(count))]


def test_stages_first_stages_and_slowdown_are_found_again() -> None:
    found = with_stages(PLAIN, MODEL, PARTITION, [(plan, ran(plan, TRUTH)) for plan in PLANS], around())
    costs = TableCosts(MODEL, found, partition=PARTITION)
    for plan in PLANS[:3]:
        for rank, expected in zip(ran(plan, costs).stages, ran(plan, TRUTH).stages, strict=True):
            for interval, true in zip(rank, expected, strict=True):
                assert interval.end == pytest.approx(true.end, rel=0.02)
    assert found.named("first:language")[0].forward.median == pytest.approx(3e-3, rel=0.05)
    # Every rank holds one chunk of the encoder: what its first forward adds is in its stages.
    assert found.named("first:vision") == ()


def test_the_batchs_end_and_its_stretch_are_found_again() -> None:
    runs = [(plan, ran(plan, TRUTH)) for plan in PLANS]
    found = with_iterations(with_stages(PLAIN, MODEL, PARTITION, runs, []), MODEL, PARTITION, runs)
    assert found.named("batch_end")[0].forward.median == pytest.approx(0.25)
    assert found.slowdown["iteration"] == pytest.approx(1.1, rel=0.03)


def test_loads_grow_with_the_instances_and_posts_are_shared_among_stages() -> None:
    found = with_stages(PLAIN, MODEL, PARTITION, [(plan, ran(plan, TRUTH)) for plan in PLANS], around())
    loads = {row.shape["instances"]: row.forward.median for row in found.named("load:vision")}
    assert loads == {2: pytest.approx(2e-3), 6: pytest.approx(6e-3)}
    stages = sum(t.stage.module == "vision" and t.stage.kind == "F" for p in PLANS for r in p.stages for t in r)
    assert found.named("post:vision")[0].forward.median == pytest.approx(20 * 1e-4 / stages)


def test_measuring_the_engine_again_replaces_what_was_there() -> None:
    runs = [(plan, ran(plan, TRUTH)) for plan in PLANS]
    once = with_stages(PLAIN, MODEL, PARTITION, runs, around())
    assert with_stages(once, MODEL, PARTITION, runs, around()) == once


def test_a_check_against_runs_made_with_the_costs_finds_no_error() -> None:
    costs = TableCosts(MODEL, replace(TRUTH.table, rows=(*ADDED, row("batch_end", 0.25))), partition=PARTITION)
    runs = [(plan, [ran(plan, costs, 0.25, 1.0)] * 3) for plan in PLANS[:4]]
    document = report(compare_runs(costs, PARTITION, runs, "float32"))
    assert document["stage_median_error"] == pytest.approx(0.0, abs=1e-9)
    assert document["iteration_mean_error"] == pytest.approx(0.0, abs=1e-9)
    assert document["noise"] == {"layer": None, "stage": 0.0, "iteration": 0.0}


def test_a_plans_makespan_is_the_one_it_was_made_with() -> None:
    for plan in PLANS[:3]:
        assert makespan(plan, MODEL, PARTITION, PLANNER.costs, "float32") == pytest.approx(plan.makespan)


def test_a_planner_with_a_table_plans_and_predicts_by_it() -> None:
    table = replace(TRUTH.table, rows=(*ADDED, row("batch_end", 0.25)))
    plan = Planner(replace(PLANNER.settings, table=table)).plan(0)
    costs = TableCosts(MODEL, table, PLANNER.settings.rates, partition=PARTITION)
    assert plan.makespan == pytest.approx(makespan(plan, MODEL, PARTITION, costs, "float32"))
    assert plan.iteration == pytest.approx(plan.makespan + 0.25)


class Source:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def next(self, step: int) -> StepPlan:
        self.asked.append(step)
        return PLANS[0]


def test_rounds_repeat_the_plans_while_the_planner_goes_on() -> None:
    source = Source()
    rounds = Rounds(source, PLANS[:3])  # type: ignore[arg-type]  # only next is called
    assert [rounds.next(step) for step in range(7)] == [PLANS[step % 3] for step in range(7)]
    assert source.asked == list(range(7))


def test_a_rare_interruption_is_left_out_of_a_mean() -> None:
    assert spread_of([1.0] * 19 + [100.0]) == 1.0
    assert spread_of([2.0]) == 2.0


@pytest.mark.parametrize("flat", [0.0, 0.15])
def test_a_slowdown_far_below_the_layers_alone_is_not_believed(flat: float) -> None:
    slow = {f"{name}/{kind}": flat for name in ("vision", "language") for kind in "FB"}
    costs = TableCosts(MODEL, replace(PLAIN, rows=ADDED, slowdown=slow), partition=PARTITION)
    found = with_stages(PLAIN, MODEL, PARTITION, [(PLANS[0], ran(PLANS[0], costs))], around())
    assert {found.slowdown[key] for key in slow} == {1.0}
    alone, here = TableCosts(MODEL, PLAIN), TableCosts(MODEL, found, partition=PARTITION)
    for stages in PLANS[0].stages:
        for stage in (timed.stage for timed in stages):
            sizes = PLANS[0].batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
            arguments = stage.kind, stage.module, 0, 2, sizes
            assert here.stage(*arguments) >= alone.layers(*arguments)
    assert all("which is not believed" in found.named(f"stage:{name}")[0].note for name in ("vision", "language"))


def test_a_slowdown_that_is_believed_leaves_no_note() -> None:
    found = with_stages(PLAIN, MODEL, PARTITION, [(plan, ran(plan, TRUTH)) for plan in PLANS], around())
    assert not any(row.note for row in found.rows)
