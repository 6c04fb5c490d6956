"""Where a batch's emulation and its simulation part: the parts are whole, and each is what it is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.planner import Planner, StepPlan
from ds_dip.rehearsal.comparison import Compared, compare, emulated_timeline
from ds_dip.rehearsal.costs import Dilated
from ds_dip.rehearsal.twin import twin_of
from ds_dip.reporting.timeline import read_timeline, write_timeline
from ds_dip.runtime.clock import Interval
from ds_dip.runtime.measure import Measured
from tests.planner_cases import FEW, MODEL, settings

DILATION = 4.0
TWIN = twin_of(MODEL, "float32")
COSTS = Dilated(Roofline(MODEL, Rates()), DILATION)
PLANNER = Planner(replace(settings(), model=TWIN, evaluations=0))
PLANNER.costs = COSTS
PLAN = PLANNER.plan(0)
PARTITION = PLANNER.settings.partition


def ran(plan: StepPlan, before: float = 0.0, after: float = 0.0, factor: float = 1.0) -> Measured:
    """Exactly as simulated, but for a start that is late, an end that takes time, and a clock that is slower."""
    stages = tuple(
        tuple(Interval(t.stage, before + factor * t.start, before + factor * t.end) for t in rank)
        for rank in plan.stages
    )
    executed = factor * plan.makespan
    return Measured(plan.step, stages, before / 2, executed, before + executed + after, 0.25)


def compared(measured: Measured) -> Compared:
    return compare(PLAN, measured, TWIN, PARTITION, COSTS, DILATION)


def test_a_batch_that_ran_as_simulated_differs_by_nothing() -> None:
    found = compared(ran(PLAN))
    assert found.predicted == pytest.approx(PLAN.makespan / DILATION)
    assert found.difference == pytest.approx(0.0, abs=1e-9)
    for part in (found.plan, found.stages, found.between, found.end):
        assert part == pytest.approx(0.0, abs=1e-9 * PLAN.makespan)
    assert 0 <= found.bubble_predicted < 1
    assert found.peak_memory == max(PLAN.peak_memory) > 0


@FEW
@given(before=st.floats(0, 1), after=st.floats(0, 1), factor=st.floats(1, 2))
def test_the_parts_sum_to_the_difference(before: float, after: float, factor: float) -> None:
    found = compared(ran(PLAN, before, after, factor))
    total = found.plan + found.stages + found.between + found.end
    assert total == pytest.approx(found.measured - found.predicted, abs=1e-9)
    assert found.plan == pytest.approx(before / DILATION, abs=1e-9)
    assert found.end == pytest.approx(after / DILATION, abs=1e-9)
    # All stages longer by a factor: transfers are not, so the order takes at most that much longer.
    assert -1e-9 <= found.stages <= (factor - 1) * found.predicted + 1e-9
    assert found.between >= -1e-9


def test_stages_that_ran_later_than_they_could_are_between() -> None:
    plain = ran(PLAN)
    late = tuple(
        tuple(replace(i, start=2 * i.start, end=2 * i.start + i.end - i.start) for i in r) for r in plain.stages
    )
    end = max(i.end for rank in late for i in rank)
    found = compared(replace(plain, stages=late, executed=end, iteration=end))
    assert found.stages == pytest.approx(0.0, abs=1e-9)
    assert found.between > 0.1 * found.predicted


def test_a_timeline_is_the_devices_and_says_that_it_is_an_emulation(tmp_path: Path) -> None:
    measured = ran(PLAN, before=0.5)
    timeline = emulated_timeline(PLAN, measured, MODEL, PARTITION, "float32", DILATION)
    assert read_timeline(write_timeline(tmp_path, timeline)) == timeline
    assert "emulation" in timeline.schedule
    assert timeline.clock.startswith("emulation")
    assert timeline.measured is not None
    assert timeline.iteration_s == pytest.approx((0.5 + PLAN.makespan) / DILATION)
    assert timeline.planned_iteration_s == pytest.approx(PLAN.iteration / DILATION)
    last = max(stage.end_s for stage in timeline.measured.stages)
    assert last == pytest.approx(timeline.iteration_s)
    # Bytes of the model's own tensors, 4 numbers a token, and not of the twin's, one an instance.
    found = {transfer.bytes for transfer in timeline.planned.transfers}
    instances = {
        4 * 4 * count
        for microbatch in PLAN.batch.microbatches
        for name, subs in microbatch.subs.items()
        for sub in range(len(subs))
        for count in [sum(microbatch.sub_sizes(name, sub).tokens)]
    }
    assert found
    assert found <= instances
