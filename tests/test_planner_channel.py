"""Channels: a record reaches every reader once it is published, through torch's store and in memory alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed

from ds_dip.planner import Channel, ChannelError, MemoryChannel, StoreChannel, within
from ds_dip.planner.channel import KEPT

PATIENCE = 60.0


@pytest.fixture(scope="module")
def store() -> Any:
    make = torch.distributed.TCPStore  # type: ignore[attr-defined]  # torch exports it without types
    return make("127.0.0.1", 0, 1, True, timeout=timedelta(seconds=PATIENCE))


@pytest.fixture(params=["store", "memory"])
def ends(request: pytest.FixtureRequest, store: Any) -> Iterator[tuple[Channel, Channel]]:
    """The leader's end and a follower's."""
    if request.param == "memory":
        memory = MemoryChannel(leader=3)
        yield memory, memory
    else:
        prefix = f"plans/{request.node.name}"
        yield StoreChannel(store, prefix, 3), StoreChannel(store, prefix, 3)


def test_what_is_published_is_read(ends: tuple[Channel, Channel]) -> None:
    leader, follower = ends
    for step in range(5):
        record = bytes(range(256)) * (step + 1)
        leader.publish(f"step {step}", record)
        assert follower.read(f"step {step}", PATIENCE) == record
        assert follower.read(f"step {step}", PATIENCE) == record


def test_a_reader_waits_for_the_leader(ends: tuple[Channel, Channel]) -> None:
    leader, follower = ends
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(follower.read("step 9", PATIENCE)))
    reader.start()
    leader.publish("step 9", b"plan")
    reader.join(PATIENCE)
    assert found == [b"plan"]


def test_a_leader_publishes_while_it_reads_on_another_client(store: Any) -> None:
    waiting = StoreChannel(store, "plans/other", 0)
    reader = threading.Thread(target=lambda: waiting.read("step 0", PATIENCE))
    reader.start()
    store.set("something else", "works")
    StoreChannel(store, "plans/other", 0).publish("step 0", b"plan")
    reader.join(PATIENCE)
    assert not reader.is_alive()


def test_a_missing_record_is_one_sentence_with_leader_record_and_deadline(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(ChannelError, match=r"rank 3, the leader, did not publish 'step 7' within 0\.05 s") as caught:
        ends[1].read("step 7", 0.05)
    assert "\n" not in str(caught.value)


def test_old_records_are_deleted(ends: tuple[Channel, Channel]) -> None:
    leader, follower = ends
    for step in range(KEPT + 2):
        leader.publish(f"step {step}", b"plan")
    assert [follower.read(f"step {step}", PATIENCE) for step in range(2, KEPT + 2)] == [b"plan"] * KEPT
    for step in (0, 1):
        with pytest.raises(ChannelError):
            follower.read(f"step {step}", 0.01)


def test_pipelines_of_one_job_do_not_meet(store: Any) -> None:
    first, second = StoreChannel(store, "plans/0", 0), StoreChannel(store, "plans/1", 2)
    first.publish("step 0", b"first")
    second.publish("step 0", b"second")
    assert (first.read("step 0", PATIENCE), second.read("step 0", PATIENCE)) == (b"first", b"second")


class Stopped:
    """A client of a store whose process is stopped: no call returns."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def clone(self) -> Stopped:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.release.wait(PATIENCE)


def test_a_store_that_does_not_answer_at_all_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds_dip.planner.channel._GRACE_S", 0.1)
    store = Stopped()
    with pytest.raises(ChannelError, match=r"rank 3, the leader, did not publish 'step 1' within 0.1 s \(no answer"):
        StoreChannel(store, "plans/stopped", 3).read("step 1", 0.1)
    with pytest.raises(ChannelError, match="rank 3 could not publish 'step 1' in the store"):
        StoreChannel(store, "plans/stopped", 3, publish_s=0.1).publish("step 1", b"plan")
    store.release.set()


def test_what_an_action_raises_is_raised_where_it_is_waited_for() -> None:
    with pytest.raises(ZeroDivisionError):
        within(PATIENCE, lambda: 1 // 0)
    assert within(PATIENCE, lambda: 3) == 3
    assert within(PATIENCE, lambda: None) is None
