"""The client against real planner processes: planning ahead, and every way in which such a process can go wrong."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import psutil
import pytest

from ds_dip.costs.corrections import Corrections, Measurement
from ds_dip.planner import Planner, PlannerClient, StageTime
from ds_dip.planner.record import encode_plan, seal
from ds_dip.planner.times import step_times
from tests.planner_cases import Samples, drawn, settings
from tests.test_planner_times import Measured

#: Seconds after which a test gives up on something that should happen soon.
PATIENCE = 60.0

Start = Callable[..., PlannerClient]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    clients: list[PlannerClient] = []

    def begin(dataset: Mapping[str, Any] | None = None, **options: Any) -> PlannerClient:
        client = PlannerClient(settings(dataset), log=tmp_path / "planner.log", **options)
        clients.append(client)
        return client

    yield begin
    for client in clients:
        client.close()


def process_of(client: PlannerClient) -> psutil.Process:
    number = client.process_id
    assert number is not None
    return psutil.Process(number)


def gone(process: psutil.Process) -> bool:
    try:
        process.wait(PATIENCE)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return not process.is_running()


def test_plans_are_ahead_of_the_step_and_the_same_as_made_in_process(start: Start) -> None:
    client, planner = start(), Planner(settings())
    for step in range(4):
        assert client.ready(PATIENCE, plans=2), "two batches are planned before they are asked for"
        answer = client.take(step, PATIENCE)
        assert answer.plan == planner.plan(step)
        assert answer.record == encode_plan(planner.plan(step))
    statistics = client.statistics()
    assert statistics.lead >= 1
    assert statistics.plan_seconds > 0
    assert (statistics.misses, statistics.restarts, statistics.refused) == ({}, 0, 0)


def test_the_process_is_nice_sees_no_accelerator_and_has_no_torch(start: Start) -> None:
    client = start()
    assert client.ready(PATIENCE)
    process = process_of(client)
    niceness = psutil.Process().nice() + min(10, 19 - psutil.Process().nice())
    assert process.nice() >= niceness
    group = Path(f"/proc/{process.pid}/autogroup")
    if group.exists():  # where sessions share the processor as groups, the group must be nice too
        assert group.read_text().split()[-2:] == ["nice", "10"]
    assert process.environ()["CUDA_VISIBLE_DEVICES"] == ""
    assert process.environ()["OMP_NUM_THREADS"] == "1"
    assert not [place.path for place in process.memory_maps() if "libtorch" in place.path]


def test_a_killed_planner_is_noticed_at_once_and_started_again(start: Start) -> None:
    client = start()
    assert client.take(0, PATIENCE).plan is not None
    assert client.ready(PATIENCE, plans=2)
    before = process_of(client)
    os.kill(before.pid, signal.SIGKILL)
    answer = client.take(50, PATIENCE)
    assert answer.plan is None
    assert answer.cause in ("dead", "starting")
    assert "ended by SIGKILL" in answer.reason
    assert client.ready(PATIENCE)
    assert client.process_id != before.pid
    assert client.take(51, PATIENCE).plan == Planner(settings()).plan(51)
    assert client.statistics().restarts == 1
    assert sum(client.statistics().misses.values()) == 1


def test_a_stopped_planner_costs_one_deadline_and_plans_again_when_it_goes_on(start: Start) -> None:
    client = start()
    assert client.ready(PATIENCE, plans=3)
    process = process_of(client)
    process.suspend()
    answer = client.take(10, 0.05)
    assert (answer.plan, answer.cause) == (None, "late")
    assert "step 10 was not there within 0.05 s" in answer.reason
    began = time.monotonic()
    assert client.take(11, PATIENCE).cause == "late"
    assert time.monotonic() - began < PATIENCE, "no second wait for a planner that gives no sign of life"
    process.resume()
    assert client.ready(PATIENCE, plans=1)
    assert client.take(12, PATIENCE).plan == Planner(settings()).plan(12)
    assert client.statistics().misses == {"late": 2}


def test_a_planner_that_stays_silent_is_started_again(start: Start) -> None:
    client = start(silent_s=3.0)
    assert client.ready(PATIENCE, plans=3)
    process = process_of(client)
    process.suspend()
    assert client.take(10, PATIENCE).cause in ("dead", "late", "starting")
    assert gone(process)
    assert client.ready(PATIENCE)
    assert client.take(11, PATIENCE).plan is not None


def test_after_the_limit_of_restarts_it_stays_gone(start: Start) -> None:
    client = start(restart_limit=1, command=(sys.executable, "-c", "import sys; sys.exit(3)"))
    answer = client.take(0, PATIENCE)
    while "no more" not in answer.reason:
        answer = client.take(1, PATIENCE)
    assert answer.cause == "dead"
    assert "exited with status 3" in answer.reason
    assert client.statistics().restarts == 1


PLAN = Planner(settings()).plan(0)
#: A plan that runs, of other samples than the step's.
ELSEWHERE = Planner(settings()).plan(1)
ELSEWHERE = seal(replace(ELSEWHERE, step=0, batch=replace(ELSEWHERE.batch, step=0)))
HALF = replace(PLAN, programs=PLAN.programs[:1], stages=PLAN.stages[:1], peak_memory=PLAN.peak_memory[:1])


def framed(message: list[object]) -> bytes:
    body: bytes = msgpack.packb(message)
    return struct.pack(">I", len(body)) + body


NONSENSE = {
    "noise": bytes(range(255, 0, -1)),
    "another message": framed(["hello"]),
    "a broken record": framed(["plan", 0, 0.1, False, encode_plan(PLAN)[:-1]]),
    "another step": framed(["plan", 1, 0.1, False, encode_plan(PLAN)]),
    "a fallback": framed(["plan", 0, 0.1, False, encode_plan(seal(replace(PLAN, kind="fallback", reason="mine")))]),
    "another step's samples": framed(["plan", 0, 0.1, False, encode_plan(ELSEWHERE)]),
    "half a plan": framed(["plan", 0, 0.1, False, encode_plan(seal(HALF))]),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_refused_and_counted(start: Start, tmp_path: Path, kind: str) -> None:
    (tmp_path / "nonsense").write_bytes(NONSENSE[kind])
    fake = "import os,sys,time; os.write(int(sys.argv[2]), open(sys.argv[1],'rb').read()); time.sleep(600)"
    client = start(command=(sys.executable, "-c", fake, str(tmp_path / "nonsense")), restart_limit=0)
    answer = client.take(0, PATIENCE)
    assert (answer.plan, answer.cause) == (None, "refused")
    assert "the planner sent nonsense" in answer.reason
    assert client.statistics().refused == 1
    assert client.statistics().plans == 0


def test_a_batch_that_cannot_be_planned_is_told_and_the_next_ones_are_planned(start: Start) -> None:
    broken = drawn(1)[0]
    client = start({"broken": broken})
    assert client.take(0, PATIENCE).plan is not None
    answer = client.take(1, PATIENCE)
    assert answer.cause == "failed"
    assert f"the dataset raised OSError (sample {broken} cannot be read)" in answer.reason
    assert client.take(2, PATIENCE).plan is not None
    assert client.statistics().restarts == 0


def test_a_plan_that_the_leader_cannot_check_is_not_used(start: Start) -> None:
    client = start(planner=Planner(settings(), Samples(broken=drawn(1)[0])))
    assert client.take(0, PATIENCE).plan is not None
    answer = client.take(1, PATIENCE)
    assert (answer.plan, answer.cause) == (None, "failed")
    assert "its leader cannot check the plan: the dataset raised OSError" in answer.reason
    assert client.take(2, PATIENCE).plan is not None
    assert client.statistics().refused == 0


def test_a_dataset_that_cannot_be_opened_is_in_the_log(start: Start, tmp_path: Path) -> None:
    client = start({"sides": 6}, restart_limit=0)
    answer = client.take(0, PATIENCE)
    assert answer.cause == "dead"
    assert "exited with status 1 after writing" in answer.reason
    assert "sides" in answer.reason
    assert "refused the options {'sides': 6}" in (tmp_path / "planner.log").read_text()


def test_a_run_may_be_set_back_and_ahead(start: Start) -> None:
    client, planner = start(), Planner(settings())
    for step in (0, 1, 30, 31, 2, 2, 3, 3, 2):
        assert client.take(step, PATIENCE).plan == planner.plan(step)


def test_a_run_may_begin_at_any_step(start: Start) -> None:
    client = start(first_step=17)
    assert client.ready(PATIENCE, plans=3)
    assert client.take(17, PATIENCE).plan == Planner(settings()).plan(17)


def test_corrections_reach_the_planner_and_its_successor(start: Start) -> None:
    client, planner = start(), Planner(settings())
    corrections = Corrections().updated([Measurement("language", "F", 1.0, 7.0)])
    planner.corrections = corrections
    assert client.ready(PATIENCE, plans=3)
    client.correct(corrections)
    assert client.take(100, PATIENCE).plan == planner.plan(100)
    os.kill(process_of(client).pid, signal.SIGKILL)
    assert client.take(200, PATIENCE).plan is None
    assert client.ready(PATIENCE)
    assert client.take(201, PATIENCE).plan == planner.plan(201)


@pytest.mark.parametrize("stopped", [False, True])
def test_closing_leaves_no_process(start: Start, stopped: bool) -> None:
    client = start()
    assert client.ready(PATIENCE)
    process = process_of(client)
    if stopped:
        process.suspend()
    client.close()
    client.close()
    assert not process.is_running()
    assert client.process_id is None
    assert client.take(0, PATIENCE).cause == "dead"


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a child that holds the connection"])
def test_the_planner_is_gone_when_its_parent_is(forked: bool) -> None:
    script = textwrap.dedent(f"""
        import os, signal, sys
        from ds_dip.planner import PlannerClient
        from tests.planner_cases import settings
        client = PlannerClient(settings())
        assert client.ready({PATIENCE})
        child = os.fork() if {forked} else -1
        if child == 0:
            os.close(1)
            signal.pause()
        print(client.process_id, child, flush=True)
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        planner, child = map(int, parent.stdout.readline().split())
        process = psutil.Process(planner)
        parent.kill()
        parent.wait(PATIENCE)
        try:
            assert gone(process)
        finally:
            if child > 0:
                os.kill(child, signal.SIGKILL)


def test_what_the_process_learns_reaches_the_leader_whole(start: Start) -> None:
    """Factors come without the measurements behind the lines, and keep those that came before."""
    client, planner = start(), Planner(settings())
    assert client.ready(PATIENCE, plans=3)
    for step in range(24):
        plan = client.take(step, PATIENCE).plan or planner.plan(step)
        factors = [2.0, 6.0 if step >= 12 else 2.0]
        stages = tuple(
            tuple(StageTime(time.stage, 0.0, factor * (time.end - time.start)) for time in rank)
            for rank, factor in zip(planner.plan(step).stages, factors, strict=True)
        )
        client.measured(step_times(plan, Measured(step, stages, 1.0), step, 0.0))
    end = time.monotonic() + PATIENCE
    while not client.corrections.ranks and time.monotonic() < end:
        time.sleep(0.01)
    learned = client.corrections
    assert learned.fits
    assert learned.window
    assert {item.rank for item in learned.ranks} <= {0, 1}
    assert learned.deviation("language", "F", 1, 1) / learned.deviation("language", "F", 0, 1) == pytest.approx(
        3, rel=0.2
    )
