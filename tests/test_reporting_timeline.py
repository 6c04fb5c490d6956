"""Timelines of steps: from plan and measurement to the file and back."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ds_dip.files import FileError
from ds_dip.planner import Planner, StepPlan
from ds_dip.planning import build_problem
from ds_dip.reporting.timeline import StepTimeline, read_timeline, step_timeline, timelines, write_timeline
from ds_dip.scheduling.problem import Problem
from tests.planner_cases import MODEL, settings

PLANNER = Planner(settings())


@pytest.fixture(scope="module")
def plan() -> StepPlan:
    return PLANNER.plan(3)


@pytest.fixture(scope="module")
def problem(plan: StepPlan) -> Problem:
    return build_problem(plan.batch, MODEL, PLANNER.settings.partition, PLANNER.costs)


def measured(plan: StepPlan, wait: float = 0.25, slower: float = 1.5) -> Any:
    """A measurement in which every stage took ``slower`` times its prediction, after ``wait`` seconds."""
    stages = tuple(
        tuple(SimpleNamespace(stage=t.stage, start=wait + slower * t.start, end=wait + slower * t.end) for t in rank)
        for rank in plan.stages
    )
    return SimpleNamespace(
        stages=stages, waited=wait, iteration=wait + slower * plan.makespan + 0.1, loading=(0.5, 0.25)
    )


def test_a_plan_alone_gives_its_stages_from_the_batchs_start(plan: StepPlan) -> None:
    timeline = step_timeline(plan)
    assert timeline.measured is None
    assert min(stage.start_s for stage in timeline.planned.stages) == 0.0
    assert max(stage.end_s for stage in timeline.planned.stages) == pytest.approx(plan.makespan)
    assert len(timeline.planned.stages) == sum(map(len, plan.stages))


def test_planned_and_measured_begin_together(plan: StepPlan) -> None:
    timeline = step_timeline(plan, measured(plan))
    assert timeline.measured is not None
    starts = [min(s.start_s for s in track.stages) for track in (timeline.planned, timeline.measured)]
    assert starts == [0.25, 0.25]
    assert {s.stage for s in timeline.planned.stages} == {s.stage for s in timeline.measured.stages}


def test_every_message_is_a_transfer_between_the_stages_it_joins(plan: StepPlan) -> None:
    timeline = step_timeline(plan, measured(plan))
    messages = {m.id for program in plan.programs for m in program.messages}
    for track in (timeline.planned, timeline.measured):
        assert track is not None
        assert len(track.transfers) == len(messages)
        at = {(s.kind, s.module, s.chunk, s.microbatch, s.sub): s for s in track.stages}
        for transfer in track.transfers:
            source, target = at[transfer.source], at[transfer.target]
            assert (transfer.sender, transfer.receiver) == (source.rank, target.rank)
            assert source.end_s == transfer.start_s <= transfer.end_s
            assert transfer.end_s == pytest.approx(target.start_s)
            assert transfer.bytes > 0


def test_with_the_problem_transfers_end_when_they_arrive(plan: StepPlan, problem: Problem) -> None:
    tasks = {task.id: task for task in problem.tasks}
    delays = {
        ((tasks[a].kind, tasks[a].module, tasks[a].chunk), (tasks[b].kind, tasks[b].module, tasks[b].chunk)): delay
        for a, b, delay in problem.edges
    }
    timeline = step_timeline(plan, problem=problem)
    starts = {(s.kind, s.module, s.chunk, s.microbatch, s.sub): s.start_s for s in timeline.planned.stages}
    for transfer in timeline.planned.transfers:
        assert (transfer.source[:3], transfer.target[:3]) in delays
        assert transfer.end_s <= starts[transfer.target] + 1e-12


def test_planned_memory_rises_from_and_returns_to_nothing_and_peaks_as_predicted(
    plan: StepPlan, problem: Problem
) -> None:
    partition = PLANNER.settings.partition
    memory = step_timeline(plan, problem=problem, model=MODEL, partition=partition).planned.memory
    for rank in range(2):
        used = [sample.bytes for sample in memory if sample.rank == rank]
        assert used[-1] == pytest.approx(0.0, abs=1e-6)
        assert max(used) == pytest.approx(plan.peak_memory[rank])


def test_bf16_halves_the_bytes_that_travel(plan: StepPlan) -> None:
    full = sum(t.bytes for t in step_timeline(plan).planned.transfers)
    half = sum(t.bytes for t in step_timeline(plan, compute="bfloat16").planned.transfers)
    assert full == 2 * half


def test_a_timeline_is_read_as_it_was_written(plan: StepPlan, problem: Problem, tmp_path: Path) -> None:
    timeline = step_timeline(plan, measured(plan), problem)
    path = write_timeline(tmp_path, timeline)
    assert path == tmp_path / "timelines" / "step-000003.json"
    assert read_timeline(path) == timeline
    assert timelines(tmp_path) == {3: path}


def test_only_the_newest_timelines_are_kept(plan: StepPlan, tmp_path: Path) -> None:
    timeline = step_timeline(plan)
    for step in range(8, 13):
        write_timeline(tmp_path, replace(timeline, step=step), keep=2)
    assert list(timelines(tmp_path)) == [11, 12]


def test_a_run_without_timelines_is_refused_with_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(FileError, match='trained with "dip.trace.every" above 0'):
        timelines(tmp_path)


STAGE = {
    "rank": 0, "kind": "F", "module": "m", "chunk": 0, "microbatch": 0, "sub": 0, "start_s": 0.0, "end_s": 1.0
}  # fmt: skip
ENDS = ["F", "m", 0, 0, 0]


def stage(**changes: Any) -> dict[str, Any]:
    return {"planned": {"stages": [STAGE | changes]}}


def transfer(**changes: Any) -> dict[str, Any]:
    row = {"sender": 0, "receiver": 1, "order": 0, "start_s": 0.0, "end_s": 1.0, "bytes": 4}
    return {"planned": {"stages": [], "transfers": [row | {"source": ENDS, "target": ENDS} | changes]}}


def memory(**changes: Any) -> dict[str, Any]:
    return {"planned": {"stages": [], "memory": [{"rank": 0, "at_s": 0.0, "bytes": 1.0} | changes]}}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ranks": "2"}, "field 'ranks' is '2'"),
        ({"colour": "red"}, "field 'colour' is 'red'"),
        ({"planned": {"stages": [{"rank": 0}]}}, "field 'planned.stages.0.kind'"),
        ({"iteration_s": [1]}, "field 'iteration_s' is [1]"),
        ({"format": "ds-dip/plan"}, "field 'format' is 'ds-dip/plan'"),
        ({"version": 2}, "field 'version' is 2"),
        ({"ranks": 10**9}, "field 'ranks' is 1000000000, expected 1 to 65536"),
        ({"ranks": -1}, "field 'ranks' is -1, expected 1 to 65536"),
        ({"ranks": 1}, "field 'planned.stages.32.rank' is 1, expected 0 to 0"),
        ({"step": -2}, "field 'step' is -2"),
        ({"iteration_s": 1e308}, "field 'iteration_s' is 1e+308, expected 0 to 1e+09"),
        ({"waited_s": -1.0}, "field 'waited_s' is -1.0, expected 0 to 1e+09"),
        ({"loading_s": [1.0]}, "field 'length of loading_s' is 1, expected 2 to 2"),
        ({"loading_s": [1.0, -1.0]}, "field 'loading_s.1' is -1.0, expected 0 to 1e+09"),
        (stage(rank=99), "field 'planned.stages.0.rank' is 99, expected 0 to 1"),
        (stage(start_s=1e308), "field 'planned.stages.0.start_s' is 1e+308, expected -1e+09 to 1e+09"),
        (stage(start_s=2.0), "field 'planned.stages.0.end_s' is 1.0, expected 2 to 1e+09"),
        (stage(chunk=-1), "field 'planned.stages.0.chunk' is -1, expected 0 to inf"),
        (transfer(receiver=2), "field 'planned.transfers.0.receiver' is 2, expected 0 to 1"),
        (transfer(end_s=-1.0), "field 'planned.transfers.0.end_s' is -1.0, expected 0 to 1e+09"),
        (transfer(bytes=-1), "field 'planned.transfers.0.bytes' is -1, expected 0 to inf"),
        (memory(rank=-1), "field 'planned.memory.0.rank' is -1, expected 0 to 1"),
        (memory(at_s=1e300), "field 'planned.memory.0.at_s' is 1e+300"),
    ],
)
def test_a_wrong_field_is_refused_with_its_name(change: dict[str, Any], field: str, tmp_path: Path) -> None:
    timeline = StepTimeline(0, 2, "planned", "", "dip", step_timeline(PLANNER.plan(0)).planned)
    path = write_timeline(tmp_path, timeline)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FileError) as error:
        read_timeline(path)
    assert str(error.value).startswith(f"{path}: {field}")
