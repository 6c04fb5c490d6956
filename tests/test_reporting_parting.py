"""Where a step parts from its plan: the parts sum to the difference, and each cause ends up in its own part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.names import POST
from ds_dip.planner import Planner, StageTime
from ds_dip.planner.recording import RecordedStep
from ds_dip.reporting.parting import TOLERANCE, Parting, Parts
from tests.planner_cases import FEW, settings
from tests.profiling_cases import row, table
from tests.recording_cases import PLANNER, RUN, run_of, scaled, simulated

PARTING = Parting(RUN)
PLAN = PLANNER.plan(3)
#: Seconds that sums of some hundred times may be off.
ROUNDING = 1e-9


def check(parts: Parts) -> None:
    """What holds of every step."""
    assert parts.difference_s == pytest.approx(parts.measured_iteration_s - parts.predicted_iteration_s, abs=ROUNDING)
    total = parts.stages_s + parts.waiting_s + parts.end_s + parts.unexplained_s
    assert total == pytest.approx(parts.difference_s, abs=ROUNDING)
    assert sum(group.effect_s for group in parts.groups) == pytest.approx(parts.stages_s, abs=ROUNDING)
    waiting = parts.waiting
    inner = waiting.plan_s + waiting.begin_s + waiting.transfers_s + waiting.between_s + waiting.hidden_s
    assert inner == pytest.approx(parts.waiting_s, abs=ROUNDING)
    assert waiting.hidden_s <= ROUNDING
    assert sum(gap.seconds for gap in parts.gaps) == pytest.approx(
        waiting.transfers_s + waiting.between_s, abs=ROUNDING
    )
    assert parts.unexplained_s == pytest.approx(0.0, abs=ROUNDING)


@FEW
@given(step=st.integers(0, 300), seed=st.integers(0, 2**32))
def test_the_parts_sum_to_the_difference(step: int, seed: int) -> None:
    found = simulated(PLANNER.plan(step), seed)
    parts = PARTING.parts(found)
    check(parts)
    assert parts.measured_iteration_s == found.iteration
    assert sum(group.stages for group in parts.groups) == sum(map(len, found.stages))


@FEW
@given(seed=st.integers(0, 2**32), shift=st.floats(-1.0, 1.0), wait=st.floats(0.0, 2.0))
def test_they_sum_for_clocks_that_disagree_too(seed: int, shift: float, wait: float) -> None:
    found = simulated(PLAN, seed)
    moved = tuple(StageTime(time.stage, time.start + shift, time.end + shift) for time in found.stages[1])
    check(PARTING.parts(replace(found, stages=(found.stages[0], moved), waited=wait)))


def test_a_run_that_went_by_its_plan_parts_nowhere() -> None:
    parts = PARTING.parts(scaled(PLAN, begin=0.0, end=0.0))
    assert [parts.difference_s, parts.stages_s, parts.waiting_s, parts.end_s] == pytest.approx([0.0] * 4, abs=ROUNDING)
    assert parts.divergence is None
    assert parts.error == pytest.approx(0.0, abs=ROUNDING)


@FEW
@given(factor=st.floats(1.05, 20.0))
def test_stages_that_take_longer_are_all_of_the_difference_but_for_messages(factor: float) -> None:
    parts = PARTING.parts(scaled(PLAN, factor, begin=0.0, end=0.0))
    check(parts)
    longer = PLAN.makespan * (factor - 1.0)
    assert parts.difference_s == pytest.approx(longer)
    # The plan's transfers are scaled with its times, and what they take longer is waiting for messages.
    assert parts.stages_s == pytest.approx(longer, rel=0.01)
    assert parts.waiting.transfers_s == pytest.approx(parts.waiting_s, abs=ROUNDING)


def slowed(rank: int, kind: str, module: str, factor: float) -> RecordedStep:
    """A step of stages as the plan has them, but for one kind of stage on one rank."""
    planned = {time.stage: time.end - time.start for times in PLAN.stages for time in times}
    sources = {m.target: [] for program in PLAN.programs for m in program.messages}
    delays = PARTING._delays(PLAN)
    for (source, target), delay in delays.items():
        sources[target].append((source, delay))
    ended, free = {}, [0.0] * len(PLAN.stages)
    rest, times = [[t.stage for t in own] for own in PLAN.stages], [[] for _ in PLAN.stages]
    while any(rest):
        for own, stages in enumerate(rest):
            while stages and all(source in ended for source, _ in sources.get(stages[0], ())):
                stage = stages.pop(0)
                start = max([free[own], *(ended[source] + delay for source, delay in sources.get(stage, ()))])
                slower = factor if (own, stage.kind, stage.module) == (rank, kind, module) else 1.0
                ended[stage] = free[own] = start + planned[stage] * slower
                times[own].append(StageTime(stage, start, free[own]))
    return RecordedStep(PLAN, tuple(map(tuple, times)), 0.0, max(free), "")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["F", "B"])
@pytest.mark.parametrize("module", ["vision", "language"])
def test_the_kind_of_stage_that_took_longer_is_named(rank: int, kind: str, module: str) -> None:
    parts = PARTING.parts(slowed(rank, kind, module, 3.0))
    check(parts)
    assert parts.waiting_s == pytest.approx(0.0, abs=ROUNDING)
    largest, *others = parts.groups
    assert (largest.rank, largest.kind, largest.module) == (rank, kind, module)
    assert largest.effect_s == pytest.approx(parts.difference_s)
    assert largest.measured_s == pytest.approx(3.0 * largest.predicted_s)
    assert [group.effect_s for group in others] == pytest.approx([0.0] * len(others), abs=ROUNDING)
    assert parts.divergence is not None
    assert (parts.divergence.rank, parts.divergence.stage.kind, parts.divergence.stage.module) == (rank, kind, module)
    assert parts.divergence.started_late_s <= TOLERANCE * PLAN.makespan
    assert parts.divergence.longer_s > 0


def test_what_surrounds_the_stages_is_waiting_before_and_the_end_after() -> None:
    parts = PARTING.parts(scaled(PLAN, begin=0.5, end=0.25))
    check(parts)
    assert parts.stages_s == pytest.approx(0.0, abs=ROUNDING)
    assert (parts.waiting.plan_s, parts.waiting.begin_s) == pytest.approx((0.25, 0.25))
    assert parts.end_s == pytest.approx(0.25)
    assert parts.divergence is None


def test_a_pause_between_two_stages_of_a_rank_is_a_gap_there() -> None:
    found = scaled(PLAN, begin=0.0, end=0.0)
    last = PLAN.stages[0][-1]
    assert last.end == pytest.approx(PLAN.makespan)
    late = StageTime(last.stage, last.start + 1.0, last.end + 1.0)
    stages = ((*found.stages[0][:-1], late), *found.stages[1:])
    parts = PARTING.parts(replace(found, stages=stages, iteration=PLAN.makespan + 1.0))
    check(parts)
    assert parts.stages_s == pytest.approx(0.0, abs=ROUNDING)
    assert parts.gaps[0].stage == last.stage
    assert parts.gaps[0].seconds == pytest.approx(1.0, abs=1e-3)
    assert parts.divergence is not None
    assert parts.divergence.stage == last.stage
    assert (parts.divergence.started_late_s, parts.divergence.longer_s) == pytest.approx((1.0, 0.0), abs=1e-9)


def test_what_a_rank_does_around_a_stage_is_part_of_its_prediction() -> None:
    around = {"F": 0.001, "B": 0.002}
    rows = tuple(row(f"{POST}{name}", around["F"], around["B"]) for name in ("vision", "language"))
    run = run_of(settings(table=replace(table(), rows=rows)))
    plan = Planner(run.settings).plan(0)
    # The engine's clock sees only the stage itself, of a rank that is busy with it for longer.
    stages = tuple(
        tuple(StageTime(time.stage, time.start + around[time.stage.kind], time.end) for time in own)
        for own in plan.stages
    )
    parts = Parting(run).parts(RecordedStep(plan, stages, 0.0, around["F"] + plan.makespan, ""))
    check(parts)
    assert parts.stages_s == pytest.approx(0.0, abs=ROUNDING)
    assert [group.measured_s for group in parts.groups] == pytest.approx([g.predicted_s for g in parts.groups])
