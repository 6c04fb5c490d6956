"""Plan sources: the leader decides, every rank runs the same, and training goes on whatever the planner does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import pytest

from ds_dip.planner import (
    ChannelError,
    FollowerSource,
    LeaderSource,
    MemoryChannel,
    Planner,
    PlannerClient,
    PlanSource,
    PlanSourceError,
    StageTime,
    StepPlan,
)
from tests.planner_cases import Samples, settings

PATIENCE = 60.0


@dataclass(frozen=True)
class Measured:
    step: int
    stages: tuple[tuple[StageTime, ...], ...]
    iteration: float


def slowed(plan: StepPlan, factor: float, rest: float) -> Measured:
    """A step whose stages took ``factor`` times the plan's times, and ``rest`` more around them."""
    stages = tuple(
        tuple(StageTime(time.stage, time.start * factor, time.end * factor) for time in rank) for rank in plan.stages
    )
    return Measured(plan.step, stages, plan.makespan * factor + rest)


@pytest.fixture
def ranks() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def together(pool: ThreadPoolExecutor, sources: list[PlanSource], step: int) -> list[StepPlan]:
    futures: list[Future[StepPlan]] = [pool.submit(source.next, step) for source in sources]
    return [future.result(PATIENCE) for future in futures]


def followers(channel: MemoryChannel, count: int) -> list[PlanSource]:
    return [FollowerSource(settings(), channel, deadline_s=PATIENCE) for _ in range(count)]


def test_all_ranks_run_the_leaders_plan(ranks: ThreadPoolExecutor) -> None:
    channel = MemoryChannel()
    sources: list[PlanSource] = [LeaderSource(Planner(settings()), channel), *followers(channel, 3)]
    for step in range(5):
        plans = together(ranks, sources, step)
        assert plans == [Planner(settings()).plan(step)] * 4
    assert [(s.statistics().steps, s.statistics().planned) for s in sources] == [(5, 5)] * 4
    assert sources[0].statistics().plan_seconds > 0


def test_training_goes_on_when_the_planner_is_killed_and_after(ranks: ThreadPoolExecutor) -> None:
    channel, client = MemoryChannel(), PlannerClient(settings())
    leader = LeaderSource(Planner(settings()), channel, client, deadline_s=PATIENCE, first_deadline_s=PATIENCE)
    sources: list[PlanSource] = [leader, *followers(channel, 1)]
    try:
        assert together(ranks, sources, 0)[0].kind == "planned"
        number = client.process_id
        assert number is not None
        os.kill(number, signal.SIGKILL)
        # Far ahead, so that no plan in hand can serve it.
        plans = together(ranks, sources, 40)
        assert plans[0] == plans[1] == Planner(settings()).fallback(40, plans[0].reason)
        assert plans[0].kind == "fallback"
        assert client.ready(PATIENCE)
        assert [plan.kind for plan in together(ranks, sources, 41)] == ["planned"] * 2
        statistics = leader.statistics()
        assert (statistics.steps, statistics.planned, sum(statistics.fallbacks.values())) == (3, 2, 1)
        assert statistics.restarts == 1
        assert "step 40: the planner was ended by SIGKILL" in statistics.reasons[0].replace("is starting again: ", "")
        assert sources[1].statistics().fallbacks == {"published": 1}
    finally:
        leader.close()


def test_a_stopped_planner_never_holds_training_up() -> None:
    client = PlannerClient(settings())
    leader = LeaderSource(Planner(settings()), None, client, deadline_s=0.05, first_deadline_s=PATIENCE)
    try:
        assert leader.next(0).kind == "planned"
        assert client.ready(PATIENCE, plans=2)
        psutil.Process(client.process_id).suspend()
        assert [leader.next(step).kind for step in range(10, 15)] == ["fallback"] * 5
        assert leader.statistics().fallbacks == {"late": 5}
    finally:
        leader.close()


def test_a_schedule_that_does_not_apply_falls_back_to_one_that_does() -> None:
    most = max(Planner(settings(schedule="1f1b")).plan(0).peak_memory)
    tight = settings(schedule="1f1b", memory_capacity=(most * 0.9,) * 2)
    plan = LeaderSource(Planner(tight)).next(0)
    assert plan.kind == "fallback"
    assert "1F1B cannot apply" in plan.reason


def test_what_cannot_be_planned_is_the_same_error_on_every_rank(ranks: ThreadPoolExecutor) -> None:
    channel = MemoryChannel()
    hopeless = settings(memory_capacity=(1.0, 1.0))
    sources: list[PlanSource] = [LeaderSource(Planner(hopeless), channel), *followers(channel, 1)]
    futures = [ranks.submit(source.next, 0) for source in sources]
    messages = []
    for future in futures:
        with pytest.raises(PlanSourceError, match="step 0 cannot be planned: ") as caught:
            future.result(PATIENCE)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_an_evaluation_is_the_leaders_too_and_steps_go_on(ranks: ThreadPoolExecutor) -> None:
    channel = MemoryChannel()
    sources: list[PlanSource] = [LeaderSource(Planner(settings()), channel), *followers(channel, 1)]
    samples = [Samples().metadata(index) for index in range(6)]
    together(ranks, sources, 0)
    for number in range(2):
        futures = [ranks.submit(source.evaluation, samples) for source in sources]
        plans = [future.result(PATIENCE) for future in futures]
        assert plans == [Planner(settings()).evaluation(number, samples)] * 2
    together(ranks, sources, 1)


def test_a_follower_with_other_samples_to_evaluate_refuses() -> None:
    channel = MemoryChannel()
    LeaderSource(Planner(settings()), channel).evaluation([Samples().metadata(0)])
    with pytest.raises(PlanSourceError, match="sample 's0', which this rank was not given"):
        followers(channel, 1)[0].evaluation([Samples().metadata(1)])


def test_predictions_approach_what_is_measured() -> None:
    leader = LeaderSource(Planner(settings()))
    for step in range(40):
        plan = leader.next(step)
        truth = slowed(Planner(settings()).plan(step), factor=6.0, rest=0.25)
        leader.measured(Measured(step, truth.stages, truth.iteration))
    assert plan.iteration == pytest.approx(truth.iteration, rel=0.05)


def test_a_slow_first_step_does_not_count() -> None:
    leader = LeaderSource(Planner(settings()))
    leader.measured(slowed(leader.next(0), factor=500.0, rest=9.0))
    assert leader.corrections.fits == ()
    leader.next(1)
    truth = slowed(Planner(settings()).plan(1), factor=2.0, rest=0.0)
    leader.measured(Measured(1, truth.stages, truth.iteration))
    assert leader.next(2).makespan == pytest.approx(2 * Planner(settings()).plan(2).makespan, rel=0.05)


def test_without_correcting_every_plan_is_that_of_the_static_costs() -> None:
    leader = LeaderSource(Planner(settings()), correct=False)
    for step in range(5):
        plan = leader.next(step)
        assert plan == Planner(settings()).plan(step)
        leader.measured(slowed(plan, factor=6.0, rest=1.0))


def test_measurements_of_another_step_are_left_out() -> None:
    leader = LeaderSource(Planner(settings()))
    plan = leader.next(0)
    leader.next(1)
    leader.measured(slowed(plan, factor=6.0, rest=1.0))
    assert leader.corrections.fits == ()


def test_corrections_are_handed_on_when_a_run_is_resumed() -> None:
    leader = LeaderSource(Planner(settings()))
    for step in range(2):
        leader.measured(slowed(leader.next(step), factor=3.0, rest=0.0))
    assert leader.corrections.fits
    resumed = LeaderSource(Planner(settings()))
    resumed.corrections = leader.corrections
    assert resumed.next(2) == leader.next(2)


def test_a_run_that_is_set_back_never_reads_the_records_of_its_first_time() -> None:
    channel, planner = MemoryChannel(), Planner(settings())
    leader, follower = LeaderSource(planner, channel), FollowerSource(settings(), channel, deadline_s=0.05)
    for step in range(4):
        leader.measured(slowed(leader.next(step), 3.0, 0.01))
        follower.next(step)
    learned = leader.corrections
    assert learned.fits
    for source in (leader, follower):
        source.resume(None)
    assert not leader.corrections.fits
    with pytest.raises(ChannelError, match="did not publish"):
        follower.next(2)
    assert leader.next(2) == follower.next(2) == Planner(settings()).plan(2)
    leader.resume(learned)
    assert leader.corrections == learned
