"""Plans as records: read back equal, and never believed when damaged or wrong."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.planner import PlanError, Planner, StepPlan
from ds_dip.planner.record import check_plan, decode_plan, encode_plan, seal
from ds_dip.planning.batch import Batch
from ds_dip.programs.program import Backward, BackwardWeight, Forward, Load, stages_of
from tests.planner_cases import FEW, MODEL, settings

PLANNER = Planner(settings())
PLAN = PLANNER.plan(0)
RECORD = encode_plan(PLAN)


@FEW
@given(st.integers(0, 300))
def test_what_is_encoded_is_decoded(step: int) -> None:
    plan = PLANNER.plan(step)
    assert decode_plan(encode_plan(plan)) == plan
    check_plan(plan, MODEL, PLANNER.settings.partition)


def test_the_hash_is_that_of_the_content() -> None:
    assert PLANNER.plan(0).hash == PLAN.hash
    assert len({PLAN.hash, PLANNER.plan(1).hash, PLANNER.fallback(0, "late").hash}) == 3


@FEW
@given(st.integers(0, len(RECORD) - 1), st.integers(1, 255))
def test_a_damaged_record_is_refused(position: int, change: int) -> None:
    damaged = bytearray(RECORD)
    damaged[position] ^= change
    with pytest.raises(PlanError):
        decode_plan(bytes(damaged))


@FEW
@given(st.binary(max_size=64))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(PlanError):
        decode_plan(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "guess"}, "kind is 'guess'"),
        ({"step": 3}, "for step 3, its batch for step 0"),
        ({"batch": Batch(0, PLAN.batch.microbatches, 0)}, "loss count of 0"),
        ({"peak_memory": (1.0,)}, "memory for 1 ranks"),
        ({"makespan": -1.0}, "negative"),
        ({"lower_bound": float("nan")}, "lower_bound is nan"),
        ({"stages": (PLAN.stages[0][1:], PLAN.stages[1])}, "rank 0 has"),
    ],
)
def test_a_wrong_value_is_refused_even_with_the_right_hash(change: dict[str, object], message: str) -> None:
    wrong = seal(replace(PLAN, **change))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=message):
        decode_plan(encode_plan(wrong))


def test_a_record_of_another_version_is_refused() -> None:
    with pytest.raises(PlanError, match="expected ds-dip/step-plan 1"):
        decode_plan(msgpack.packb(["ds-dip/step-plan", 2, b"", ""]))


def without_a_stage(plan: StepPlan) -> StepPlan:
    first = plan.programs[0]
    odd = next(i for i in first.instructions if isinstance(i, Forward | Backward))
    kept = [i for i in first.instructions if i != odd]
    return replace(plan, programs=(replace(first, instructions=tuple(kept)), *plan.programs[1:]))


def without_a_load(plan: StepPlan) -> StepPlan:
    first = plan.programs[0]
    kept = [i for i in first.instructions if not isinstance(i, Load)]
    return replace(plan, programs=(replace(first, instructions=tuple(kept)), *plan.programs[1:]))


def with_another_cut(plan: StepPlan) -> StepPlan:
    first = plan.batch.microbatches[0]
    moved = replace(first, subs={**first.subs, "language": ((0, 1),)})
    return replace(plan, batch=replace(plan.batch, microbatches=(moved, *plan.batch.microbatches[1:])))


def test_backwards_may_be_split_and_weights_are_not_computed_twice_or_without_one() -> None:
    planner = Planner(settings(split=0.0))
    plan = next(p for p in map(planner.plan, range(8)) if any(s.kind == "W" for p in p.programs for s in stages_of(p)))
    check_plan(plan, MODEL, planner.settings.partition)
    rank, program = next((n, p) for n, p in enumerate(plan.programs) if any(s.kind == "W" for s in stages_of(p)))
    later = next(i for i in program.instructions if isinstance(i, BackwardWeight))
    for odd in (later, BackwardWeight(replace(later.stage, microbatch=99))):
        programs = list(plan.programs)
        programs[rank] = replace(program, instructions=(*program.instructions, odd))
        with pytest.raises(PlanError, match="does not run every stage"):
            check_plan(replace(plan, programs=tuple(programs)), MODEL, planner.settings.partition)


def by_strategy(plan: StepPlan, strategy: str, kinds: tuple[type, ...]) -> StepPlan:
    first = plan.programs[0]
    changed = [replace(i, strategy=strategy) if isinstance(i, kinds) else i for i in first.instructions]
    return replace(plan, programs=(replace(first, instructions=tuple(changed)), *plan.programs[1:]))


def test_strategies_are_read_back_and_a_wrong_one_is_refused() -> None:
    full = Planner(settings(strategies=("full",))).plan(0)
    assert decode_plan(encode_plan(full)) == full
    assert {i.strategy for i in full.programs[0].instructions if isinstance(i, Backward)} == {"full"}
    partition = PLANNER.settings.partition
    check_plan(by_strategy(PLAN, "selective", (Forward, Backward)), MODEL, partition)
    with pytest.raises(PlanError, match="by the memory strategy 'some', expected one of none, selective, full"):
        check_plan(by_strategy(PLAN, "some", (Forward, Backward)), MODEL, partition)
    with pytest.raises(PlanError, match="by the memory strategy 'full', and its forward by 'none'"):
        check_plan(by_strategy(PLAN, "full", (Backward,)), MODEL, partition)


def test_a_plan_that_does_not_fit_the_partition_is_refused() -> None:
    partition = PLANNER.settings.partition
    with pytest.raises(PlanError, match="1 programs for 2 ranks"):
        check_plan(replace(PLAN, programs=PLAN.programs[:1]), MODEL, partition)
    with pytest.raises(PlanError, match="rank 0 does not run every stage"):
        check_plan(without_a_stage(PLAN), MODEL, partition)
    with pytest.raises(PlanError, match="rank 0 does not load"):
        check_plan(without_a_load(PLAN), MODEL, partition)
    with pytest.raises(PlanError, match="microbatch 0 does not hold"):
        check_plan(with_another_cut(PLAN), MODEL, partition)
