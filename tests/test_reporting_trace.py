"""Chrome traces: processes, threads, arrows and counters as the viewers want them."""

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ds_dip.cli import cli
from ds_dip.files import write_json
from ds_dip.planner import Planner
from ds_dip.planning import build_problem
from ds_dip.reporting.timeline import StepTimeline, step_timeline, write_timeline
from ds_dip.reporting.trace import trace
from tests.planner_cases import MODEL, settings
from tests.test_reporting_timeline import measured

PLANNER = Planner(settings())
PLAN = PLANNER.plan(3)
PROBLEM = build_problem(PLAN.batch, MODEL, PLANNER.settings.partition, PLANNER.costs)

Event = dict[str, Any]


@pytest.fixture(scope="module")
def timeline() -> StepTimeline:
    return step_timeline(PLAN, measured(PLAN), PROBLEM, model=MODEL, partition=PLANNER.settings.partition)


@pytest.fixture(scope="module")
def events(timeline: StepTimeline) -> list[Event]:
    found: list[Event] = trace(timeline)["traceEvents"]
    return found


def slices(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def names(events: list[Event], kind: str) -> list[str]:
    return [event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == kind]


def test_every_rank_is_a_process_planned_and_measured_apart(events: list[Event]) -> None:
    assert names(events, "process_name") == [
        f"step 3: planned {PLAN.schedule}",
        "planned rank 0",
        "planned rank 1",
        "measured rank 0",
        "measured rank 1",
    ]


def test_a_rank_has_a_thread_for_compute_and_one_for_its_link(events: list[Event]) -> None:
    threads = names(events, "thread_name")
    assert threads.count("compute") == 4
    assert threads.count("link to rank 0") == threads.count("link to rank 1") == 2


def test_processes_and_threads_have_numbers_of_their_own(events: list[Event]) -> None:
    threads = {(event["pid"], event["tid"]) for event in events if "tid" in event}
    assert len({thread for _, thread in threads}) == len(threads)
    assert all(process > 0 and thread > 0 for process, thread in threads)


def test_slices_of_one_thread_do_not_overlap_but_for_the_batch(events: list[Event]) -> None:
    for (process, _), of_thread in slices(events).items():
        if process == 1:
            continue
        of_thread.sort(key=lambda event: (event["ts"], event["ts"] + event["dur"]))
        for before, after in itertools.pairwise(of_thread):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6


def test_every_stage_is_a_slice_planned_and_measured(events: list[Event], timeline: StepTimeline) -> None:
    named = [event for event in events if event["ph"] == "X" and " chunk " in event["name"]]
    assert len(named) == 2 * len(timeline.planned.stages)


def test_every_transfer_is_an_arrow_out_of_a_stage_through_a_link_into_a_stage(
    events: list[Event], timeline: StepTimeline
) -> None:
    arrows: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "stf":
            arrows[event["id"]][event["ph"]] = event
    assert len(arrows) == 2 * len(timeline.planned.transfers)
    by_thread = slices(events)
    for arrow in arrows.values():
        assert set(arrow) == {"s", "t", "f"}
        assert arrow["s"]["ts"] <= arrow["t"]["ts"] + 1e-6
        for event in arrow.values():
            assert any(
                s["ts"] - 1e-6 <= event["ts"] <= s["ts"] + s["dur"] + 1e-6
                for s in by_thread[event["pid"], event["tid"]]
            )
        assert arrow["s"]["pid"] == arrow["t"]["pid"] != arrow["f"]["pid"]


def test_planned_memory_is_a_counter_of_each_rank(events: list[Event]) -> None:
    counters = [event for event in events if event["ph"] == "C"]
    assert {event["pid"] for event in counters} == {2, 3}
    assert max(event["args"]["bytes"] for event in counters) == pytest.approx(max(PLAN.peak_memory))


def test_the_batch_is_wait_stages_and_step(events: list[Event]) -> None:
    ((_, batch),) = ((key, found) for key, found in slices(events).items() if key[0] == 1)
    assert [event["name"] for event in batch] == ["iteration", "wait for the plan", "stages", "reduction and step"]
    assert sum(event["dur"] for event in batch[1:]) == pytest.approx(batch[0]["dur"])


def test_a_plan_that_did_not_run_is_shown_alone() -> None:
    events = trace(step_timeline(PLAN))["traceEvents"]
    assert names(events, "process_name") == ["planned rank 0", "planned rank 1"]


def test_the_command_writes_the_last_step_or_the_one_asked_for(timeline: StepTimeline, tmp_path: Path) -> None:
    write_timeline(tmp_path, timeline)
    write_timeline(tmp_path, step_timeline(PLANNER.plan(7)))
    out = tmp_path / "trace.json"

    result = CliRunner().invoke(cli, ["trace", str(tmp_path), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["otherData"]["step"] == 7

    result = CliRunner().invoke(cli, ["trace", str(tmp_path), "--out", str(out), "--step", "3"])
    assert result.output.startswith("step 3, planned and measured, ")
    assert json.loads(out.read_text())["otherData"]["step"] == 3


def test_the_command_writes_bubbles_planned_and_measured(timeline: StepTimeline, tmp_path: Path) -> None:
    write_timeline(tmp_path, timeline)
    out = tmp_path / "trace.json"
    assert CliRunner().invoke(cli, ["trace", str(tmp_path), "--out", str(out)]).exit_code == 0
    events = json.loads(out.read_text())["traceEvents"]
    assert names(events, "thread_name").count("bubbles") == 4
    assert timeline.measured is not None
    for first, track in ((2, timeline.planned), (4, timeline.measured)):
        for rank in range(2):
            stages = sorted((own.start_s, own.end_s) for own in track.stages if own.rank == rank)
            own = [event for event in events if event.get("cat") == "bubble" and event["pid"] == first + rank]
            idle = sorted((1e-6 * event["ts"], 1e-6 * (event["ts"] + event["dur"])) for event in own)
            for (_, end), (start, _) in itertools.pairwise(sorted([*stages, *idle])):
                assert start == pytest.approx(end, abs=1e-9)


def test_a_step_without_timeline_is_refused_with_those_there_are(timeline: StepTimeline, tmp_path: Path) -> None:
    write_timeline(tmp_path, timeline)
    result = CliRunner().invoke(cli, ["trace", str(tmp_path), "--step", "4"])
    assert result.exit_code == 2
    assert result.output == f"ds-dip: {tmp_path}: has no timeline of step 4, only of 3; name one of those\n"


def test_a_trace_never_replaces_a_file_of_the_run(timeline: StepTimeline, tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "run", timeline)
    write_json(tmp_path / "run" / "summary.json", {"format": "ds-dip/summary", "version": 1})
    (tmp_path / "link").symlink_to(path)
    before = path.read_bytes()
    for out in (path, path.with_name("step-000099.json"), tmp_path / "link", tmp_path / "run" / "summary.json"):
        result = CliRunner().invoke(cli, ["trace", str(tmp_path / "run"), "--out", str(out)])
        assert result.exit_code == 2
        assert result.output.startswith(f"ds-dip: {out}: is a place of the run's own files")
    assert path.read_bytes() == before
    result = CliRunner().invoke(cli, ["trace", str(tmp_path / "run"), "--out", str(tmp_path / "none" / "trace.json")])
    assert result.output.startswith(f"ds-dip: {tmp_path}/none/trace.json: cannot be written")
