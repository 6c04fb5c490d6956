"""Plans handed over while a step runs: published early, read early, and never two for one step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ds_dip.planner import FollowerSource, LeaderSource, MemoryChannel, Planner, PlannerClient, StepPlan
from ds_dip.planner.ahead import Decided, PublishAhead, ReadAhead
from ds_dip.planner.channel import ChannelError
from ds_dip.planner.record import decode_plan, encode_plan
from ds_dip.planner.source import PLAN, REFUSAL, step_name
from tests.planner_cases import settings

PATIENCE = 60.0
PLAN_0 = Planner(settings()).plan(0)


def soon(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold in time."""
    end = time.monotonic() + PATIENCE
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()


@pytest.fixture
def client() -> Iterator[PlannerClient]:
    found = PlannerClient(settings())
    yield found
    found.close()


def test_a_leader_publishes_the_next_step_while_this_one_runs_and_keeps_to_it(client: PlannerClient) -> None:
    channel = MemoryChannel()
    leader = LeaderSource(Planner(settings()), channel, client, deadline_s=PATIENCE, first_deadline_s=PATIENCE)
    follower = FollowerSource(settings(), channel, deadline_s=PATIENCE)
    try:
        for step in range(6):
            ours = leader.next(step)
            assert follower.next(step) == ours
            assert soon(lambda: channel.poll(step_name(step + 1, 0)) is not None)  # noqa: B023  # called at once
            record = channel.poll(step_name(step + 1, 0))
            assert record is not None
            assert decode_plan(record[1:]) == Planner(settings()).plan(step + 1)
        assert leader.statistics().hits >= 5
    finally:
        leader.close()
        follower.close()


def test_plans_are_told_of_before_they_are_asked_for(client: PlannerClient) -> None:
    channel = MemoryChannel()
    leader = LeaderSource(Planner(settings()), channel, client, deadline_s=PATIENCE, first_deadline_s=PATIENCE)
    follower = FollowerSource(settings(), channel, deadline_s=PATIENCE)
    told: dict[str, list[int]] = {"leader": [], "follower": []}
    leader.tell(lambda plan: told["leader"].append(plan.step))
    follower.tell(lambda plan: told["follower"].append(plan.step))
    try:
        for step in range(3):
            leader.next(step)
            follower.next(step)
            assert soon(lambda: all(own[-1:] == [step + 1] for own in told.values()))  # noqa: B023  # called at once
        assert told["leader"] == [1, 2, 3]
    finally:
        leader.close()
        follower.close()


def test_what_is_published_ahead_is_run_though_the_planner_has_another_plan_since(client: PlannerClient) -> None:
    channel = MemoryChannel()
    leader = LeaderSource(Planner(settings()), channel, client, deadline_s=PATIENCE, first_deadline_s=PATIENCE)
    try:
        leader.next(0)
        assert soon(lambda: channel.poll(step_name(1, 0)) is not None)
        client.close()
        record = channel.poll(step_name(1, 0))
        assert record is not None
        assert leader.next(1) == decode_plan(record[1:])
        assert leader.next(7).kind == "fallback"
    finally:
        leader.close()


def test_a_run_that_is_set_back_publishes_under_new_names(client: PlannerClient) -> None:
    channel = MemoryChannel()
    leader = LeaderSource(Planner(settings()), channel, client, deadline_s=PATIENCE, first_deadline_s=PATIENCE)
    follower = FollowerSource(settings(), channel, deadline_s=PATIENCE)
    try:
        for source in (leader, follower):
            source.next(3)
        assert soon(lambda: channel.poll(step_name(4, 0)) is not None)
        for source in (leader, follower):
            source.resume(None)
        assert leader.next(4) == follower.next(4) == Planner(settings()).plan(4)
        assert channel.poll(step_name(4, 1)) is not None
    finally:
        leader.close()
        follower.close()


class Client:
    """A client that has a plan when it is told to."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[StepPlan, bytes]] = {}

    def peek(self, step: int, deadline_s: float) -> tuple[StepPlan, bytes] | None:
        time.sleep(0.001)
        return self.known.get(step)


def test_a_step_that_is_asked_for_is_published_by_nobody_else() -> None:
    client, published = Client(), []
    ahead = PublishAhead(client, lambda step, plan, record: published.append(step))  # type: ignore[arg-type]
    ahead.look_for(1)
    assert ahead.take(1) is None
    client.known[1] = PLAN_0, b""
    time.sleep(0.05)
    assert published == []
    ahead.look_for(1)
    assert soon(lambda: published == [1])
    assert ahead.take(2) is None, "another step was published"
    ahead.close()


def test_a_store_that_is_gone_ends_no_thread_and_what_was_decided_stands() -> None:
    client = Client()
    client.known = {1: (PLAN_0, b""), 2: (PLAN_0, b"")}
    attempts: list[int] = []

    def publish(step: int, plan: StepPlan, record: bytes) -> None:
        attempts.append(step)
        if step == 1:
            raise ChannelError("gone")

    ahead = PublishAhead(client, publish)  # type: ignore[arg-type]
    ahead.look_for(1)
    assert soon(lambda: attempts == [1])
    assert ahead.take(1) == Decided(PLAN_0, b"", published=False)
    ahead.look_for(2)
    assert soon(lambda: attempts == [1, 2])
    assert ahead.take(2) == Decided(PLAN_0, b"", published=True)
    ahead.close()


class Faltering(MemoryChannel):
    """A store that has a record though it told the leader that it has not."""

    def publish(self, name: str, record: bytes) -> None:
        first = self.poll(name) is None and name == step_name(1, 0)
        super().publish(name, record)
        if first:
            raise ChannelError("no answer within 60 s")


def test_a_plan_that_may_have_been_published_is_never_replaced_by_another(client: PlannerClient) -> None:
    channel = Faltering()
    leader = LeaderSource(Planner(settings()), channel, client, deadline_s=PATIENCE, first_deadline_s=PATIENCE)
    try:
        leader.next(0)
        assert soon(lambda: channel.poll(step_name(1, 0)) is not None)
        record = channel.poll(step_name(1, 0))
        assert record is not None
        client.close()
        assert leader.next(1) == decode_plan(record[1:])
        assert channel.poll(step_name(1, 0)) == record
    finally:
        leader.close()


def reader(channel: MemoryChannel) -> ReadAhead:
    def read(record: bytes) -> StepPlan:
        if record[:1] == REFUSAL:
            raise ValueError("refused")
        return decode_plan(record[1:])

    return ReadAhead(channel, read)


def test_a_record_is_read_when_it_comes_and_only_the_one_that_is_looked_for() -> None:
    channel = MemoryChannel()
    ahead = reader(channel)
    ahead.look_for("b")
    channel.publish("a", PLAN + encode_plan(replace(PLAN_0, step=5)))
    assert ahead.take("b") is None
    ahead.look_for("b")
    channel.publish("b", PLAN + encode_plan(PLAN_0))
    assert soon(lambda: ahead._found is not None)
    assert ahead.take("a") is None
    ahead.look_for("b")
    assert soon(lambda: ahead._found is not None)
    assert ahead.take("b") == PLAN_0
    assert ahead.take("b") is None
    ahead.close()


def test_a_refusal_is_left_to_whoever_asks_and_the_reader_lives_on() -> None:
    channel = MemoryChannel()
    ahead = reader(channel)
    channel.publish("a", REFUSAL + b"no")
    channel.publish("b", PLAN + encode_plan(PLAN_0))
    ahead.look_for("a")
    time.sleep(0.05)
    assert ahead.take("a") is None
    ahead.look_for("b")
    assert soon(lambda: ahead._found is not None)
    ahead.close()


def test_closing_ends_the_threads() -> None:
    before = threading.active_count()
    sources = [reader(MemoryChannel()) for _ in range(4)]
    sources[0].look_for("never")
    for source in sources:
        source.close()
    assert threading.active_count() == before
