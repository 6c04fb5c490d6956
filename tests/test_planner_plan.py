"""The planner's core: deterministic plans whose predictions agree with themselves, over all replicas."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.corrections import Corrections, Measurement
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.config import parse_model
from ds_dip.partition import make_partition
from ds_dip.planner import SCHEDULES, Planner, StepPlan
from ds_dip.planner.record import check_plan
from ds_dip.planner.times import StageSeconds
from ds_dip.planning import PlanningError
from ds_dip.programs import replay, strategies_of
from ds_dip.programs.program import stages_of
from tests.planner_cases import FEW, Samples, drawn, settings


@FEW
@given(st.integers(0, 100), st.sampled_from(sorted(SCHEDULES)), st.integers(1, 8))
def test_a_plan_runs_every_stage_at_its_predicted_time(step: int, schedule: str, microbatches: int) -> None:
    plan = Planner(settings(schedule=schedule, microbatches=microbatches)).plan(step)
    replay(plan.programs)
    assert (plan.step, plan.kind, plan.reason) == (step, "planned", "")
    assert plan.schedule == schedule or schedule == "dip"
    assert max(time.end for rank in plan.stages for time in rank) == pytest.approx(plan.makespan)
    assert plan.lower_bound <= plan.makespan * (1 + 1e-9)
    for program, times in zip(plan.programs, plan.stages, strict=True):
        assert [time.stage for time in times] == stages_of(program)
        assert all(before.end <= after.start + 1e-12 for before, after in pairwise(times))


@FEW
@given(st.integers(0, 100))
def test_the_dip_schedule_is_never_slower_than_a_baseline(step: int) -> None:
    spans = {name: Planner(settings(schedule=name)).plan(step).makespan for name in SCHEDULES}
    assert spans["dip"] == min(spans.values())
    assert spans["dip"] <= Planner(settings()).fallback(step, "late").makespan


@FEW
@given(st.integers(0, 100))
def test_a_search_of_any_length_is_never_slower_than_the_fallback_which_is_none(step: int) -> None:
    spans = [Planner(settings(evaluations=count)).plan(step).makespan for count in (0, 50, 2000)]
    assert spans[0] == max(spans) == Planner(settings()).fallback(step, "late").makespan


def test_a_search_without_time_still_gives_a_plan() -> None:
    plan = Planner(settings(evaluations=10**9)).plan(0, budget=0.02)
    assert plan.makespan <= Planner(settings()).fallback(0, "late").makespan


@FEW
@given(st.integers(0, 50), st.integers(1, 4))
def test_replicas_share_the_global_batch_and_its_loss_count(step: int, replicas: int) -> None:
    plans = [Planner(settings(replicas=replicas, replica=replica)).plan(step) for replica in range(replicas)]
    held = [s.id for plan in plans for microbatch in plan.batch.microbatches for s in microbatch.samples]
    planner = Planner(settings())
    expected = [planner.dataset.metadata(index) for index in drawn(step)]
    assert sorted(held) == sorted(sample.id for sample in expected)
    assert {plan.batch.loss_count for plan in plans} == {sum(sample.loss_tokens for sample in expected)}


@FEW
@given(st.floats(0.01, 100))
def test_corrections_of_one_replica_never_move_samples(factor: float) -> None:
    planner = Planner(settings(replicas=2))
    before = planner.plan(3)
    planner.corrections = Corrections().updated([Measurement("vision", "F", 1.0, factor)] * 4)
    after = planner.plan(3)
    assert after.batch == before.batch


def test_corrections_move_the_prediction() -> None:
    planner = Planner(settings())
    before = planner.plan(0)
    measured = [Measurement(module, kind, 1.0, 5.0) for module in ("vision", "language") for kind in "FB"]
    planner.corrections = Corrections().updated([*measured, Measurement("", "iteration", 1.0, 2.0)])
    after = planner.plan(0)
    assert after.makespan > 2 * before.makespan
    assert after.iteration == pytest.approx(after.makespan + 1.0)


def test_measurements_stand_beside_uncorrected_predictions() -> None:
    planner = Planner(settings())
    plan = planner.plan(0)
    planner.corrections = Corrections().updated([Measurement("vision", "F", 1.0, 9.0)])
    pairs = planner.measurements(plan.batch, [StageSeconds(time.stage, 1.0) for rank in plan.stages for time in rank])
    predicted = [time.end - time.start for rank in plan.stages for time in rank]
    assert [pair.predicted for pair in pairs] == pytest.approx(predicted)
    assert [pair.rank for pair in pairs] == [rank for rank, own in enumerate(plan.stages) for _ in own]
    assert {(pair.module, pair.kind) for pair in pairs} == {(m, k) for m in ("vision", "language") for k in "FB"}


def test_an_evaluation_has_forwards_only_and_takes_fewer_samples_than_microbatches() -> None:
    planner = Planner(settings())
    plan = planner.evaluation(7, [Samples().metadata(index) for index in range(3)])
    assert len(plan.batch.microbatches) == 3
    assert {stage.kind for program in plan.programs for stage in stages_of(program)} == {"F"}


def test_a_replica_without_samples_in_an_evaluation_does_nothing() -> None:
    planner = Planner(settings(replicas=4, replica=3))
    plan = planner.evaluation(0, [Samples().metadata(0)])
    assert plan.batch.microbatches == ()
    assert plan.batch.loss_count == Samples().metadata(0).loss_tokens
    assert all(not program.instructions for program in plan.programs)


def test_a_fallback_has_the_same_batch_and_says_why() -> None:
    planner = Planner(settings(schedule="1f1b"))
    plan = planner.fallback(4, "the plan was late")
    assert (plan.kind, plan.reason) == ("fallback", "the plan was late")
    assert plan.batch == planner.plan(4).batch


def test_memory_is_never_exceeded_and_too_little_is_refused() -> None:
    free = Planner(settings()).plan(0)
    most = max(free.peak_memory)
    tight = Planner(settings(memory_capacity=(most * 0.8,) * 2)).plan(0)
    assert max(tight.peak_memory) <= most * 0.8
    with pytest.raises(PlanningError, match="step 0 does not fit into memory: .*raise dip.memory_gb"):
        Planner(settings(memory_capacity=(1.0, 1.0))).plan(0)


LIMITED = parse_model(
    {
        "format": "ds-dip/model", "version": 1, "name": "small", "edges": [["vision", "language"]],
        "modules": [
            {"name": "vision", "kind": "image_encoder", "layers": 4, "hidden": 8, "heads": 2, "kv_heads": 2, "ffn": 24,
             "gated": False, "patch": 2, "channels": 1, "image": 8, "merge": 4},
            {"name": "language", "kind": "language_model", "layers": 6, "hidden": 8, "heads": 2, "kv_heads": 1,
             "ffn": 24, "gated": True, "vocabulary": 32, "placeholders": {"vision": 4}, "rope_theta": 100},
        ],
    }
)  # fmt: skip
OF_LIMITED: dict[str, Any] = {
    "model": LIMITED, "partition": make_partition(LIMITED, 2, {"language": 2}, {"vision": 3})
}  # fmt: skip


@FEW
@given(st.integers(0, 100), st.lists(st.floats(0.1, 1.2), min_size=2, max_size=2), st.booleans(), st.data())
def test_no_plan_exceeds_memory_whatever_the_strategies(
    step: int, shares: list[float], late: bool, data: st.DataObject
) -> None:
    drawn_of = data.draw(st.lists(st.sampled_from(STRATEGIES), min_size=1, unique=True))
    offered = tuple(name for name in STRATEGIES if name in drawn_of)
    free = Planner(settings(evaluations=0, **OF_LIMITED)).plan(step).peak_memory
    limits = tuple(share * most for share, most in zip(shares, free, strict=True))
    planner = Planner(settings(memory_capacity=limits, strategies=offered, evaluations=30, **OF_LIMITED))
    refusal = ""
    try:
        plan = planner.fallback(step, "late") if late else planner.plan(step)
    except PlanningError as error:
        refusal = str(error)
    if refusal:
        assert "does not fit into memory" in refusal
        return
    assert all(most <= limit for most, limit in zip(plan.peak_memory, limits, strict=True))
    check_plan(plan, LIMITED, planner.settings.partition)
    assert set(strategies_of(plan.programs).values()) <= set(offered)


@pytest.mark.parametrize("late", [False, True])
def test_strategies_make_room_for_batches_that_do_not_fit_else(late: bool) -> None:
    def plan(**changes: Any) -> StepPlan:
        planner = Planner(settings(**changes, **OF_LIMITED))
        return planner.fallback(0, "late") if late else planner.plan(0)

    least = plan(strategies=("full",))
    limits = tuple(1.1 * most for most in least.peak_memory)
    with pytest.raises(PlanningError, match="does not fit into memory"):
        plan(memory_capacity=limits)
    assert "full" in strategies_of(plan(memory_capacity=limits, strategies=STRATEGIES).programs).values()


def test_measured_backwards_are_compared_with_what_their_strategy_costs() -> None:
    planner = Planner(settings(strategies=("full",)))
    plan = planner.plan(0)
    stage = next(s for s in stages_of(plan.programs[0]) if s.kind == "B")
    one, other = (
        planner.measurements(plan.batch, [StageSeconds(stage, 1.0, strategy)])[0].predicted
        for strategy in ("none", "full")
    )
    assert other > one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"microbatches": 0}, "microbatches is 0"),
        ({"replicas": 2, "replica": 2}, "replica is 2: give 0 to 1"),
        ({"replicas": 9}, "8 samples leaves some of 9 replicas without any"),
        ({"schedule": "best"}, "schedule is 'best': use one of dip, 1f1b, interleaved"),
        ({"evaluations": -1}, "evaluations is -1"),
        ({"loss": "mean"}, "loss is 'mean'"),
        ({"strategies": ()}, r"strategies are \(\): give at least one of none, selective, full"),
        ({"strategies": ("some",)}, "give at least one of none, selective, full"),
        ({"memory_capacity": (1.0,)}, "1 values for 2 ranks"),
    ],
)
def test_impossible_settings_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**change)


def test_planning_imports_no_torch_and_another_process_plans_alike() -> None:
    program = (
        "import sys\nfrom ds_dip.planner import Planner\nimport ds_dip.planner.__main__\n"
        "from tests.planner_cases import FEW, settings\n"
        "print(Planner(settings()).plan(5).hash)\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    plan: StepPlan = Planner(settings()).plan(5)
    assert there.stdout.strip() == plan.hash


@FEW
@given(st.integers(0, 50), st.floats(0.3, 1.0), st.sampled_from((0, 40)))
def test_a_search_finds_a_plan_within_memory_wherever_the_fallback_does(step: int, share: float, count: int) -> None:
    most = max(Planner(settings()).plan(step).peak_memory)
    tight = {"memory_capacity": (share * most,) * 2, "strategies": ("none", "selective", "full")}
    planner = Planner(settings(evaluations=count, **tight))
    try:
        fallback = planner.fallback(step, "late")
    except PlanningError:
        return
    plan = planner.plan(step)
    assert max(plan.peak_memory) <= share * most * (1 + 1e-9)
    assert max(fallback.peak_memory) <= share * most * (1 + 1e-9)
