"""Ranks tell each other why a run ends, through a real store, here between threads and with silent ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import torch.distributed

from ds_dip.partition.checkpoint import CheckpointError
from ds_dip.planner import ChannelError, PlanSourceError
from ds_dip.runtime import peers
from ds_dip.runtime.executor import StageError
from ds_dip.runtime.peers import Peers, is_loss, sentence_of
from ds_dip.runtime.transport import LostRankError, TransportError

GONE = RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:54489. Check the logs.\nmore")


@pytest.fixture(scope="module")
def store() -> Any:
    make = torch.distributed.TCPStore  # type: ignore[attr-defined]  # torch exports it without types
    return make("127.0.0.1", 0, 1, True, timeout=timedelta(seconds=30))


@pytest.fixture
def job(store: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Peers]]:
    """Three ranks of one job."""
    monkeypatch.setattr(peers, "_PERIOD_S", 0.05)
    number = next(peers._engines)
    ranks = []
    for rank in range(3):
        monkeypatch.setattr(peers, "_engines", count(number))
        ranks.append(Peers(store, rank, 3))
    monkeypatch.setattr(peers, "_engines", count(number + 1))
    yield ranks
    for peer in ranks:
        peer.close()


def test_the_first_cause_is_what_all_ranks_say(job: list[Peers]) -> None:
    with pytest.raises(StageError, match="vision chunk 0"), job[2].told("step 7"):
        raise StageError("vision chunk 0: too wide")
    for rank in (0, 1):
        with pytest.raises(TransportError) as caught, job[rank].told("step 7"):
            raise GONE
        assert str(caught.value) == f"rank {rank}, step 7: rank 2 ended in step 7: vision chunk 0: too wide"
    job[1].ended("something later")
    assert job[0].explain(GONE) == "rank 2 ended in step 7: vision chunk 0: too wide"


def test_a_silent_rank_is_named_on_all_others(job: list[Peers]) -> None:
    job[1].close()
    said: list[str] = []
    threads = [threading.Thread(target=lambda rank=rank: said.append(job[rank].explain(GONE))) for rank in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert len(said) == 2
    assert all(words.startswith("rank 1 gives no sign of life any more (killed, stopped") for words in said)


def test_a_rank_that_is_late_but_lives_is_not_called_silent(job: list[Peers]) -> None:
    late = LostRankError("message 3 of link 0 -> 1: rank 0 has not sent it within 3 s; look at that rank's log")
    assert job[1].explain(late) == str(late)
    assert job[1].explain(GONE).startswith("another rank is gone; look at that rank's log and machine")


@pytest.mark.parametrize("error", [PlanSourceError("no token"), CheckpointError("damaged")])
def test_what_all_ranks_raise_together_is_no_cause(job: list[Peers], error: Exception) -> None:
    with pytest.raises(type(error)), job[0].told("step 1"):
        raise error
    assert job[1].explain(GONE).startswith("another rank is gone")


def test_a_store_that_is_gone_is_named_unless_the_cause_was_heard(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_STORE_S", 0.2)
    alone = Peers(store, 1, 2)
    monkeypatch.setattr(alone, "_asking", Stuck())
    try:
        assert alone.explain(GONE).startswith("rank 0, which holds the store of the job, is gone or stopped; look at")
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        assert alone.explain(GONE).startswith("torchrun's agent, which holds the store")
        alone._seen = "rank 0 ended in step 2: no memory"
        assert alone.explain(GONE) == "rank 0 ended in step 2: no memory"
    finally:
        alone.close()


class Stuck:
    """A store whose process is stopped: no call ever returns."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: time.sleep(1.0)


@pytest.mark.parametrize(
    ("error", "loss", "words"),
    [
        (GONE, True, "another rank is gone"),
        (RuntimeError("Timed out waiting 3000ms for recv operation"), True, "another rank does not answer"),
        (RuntimeError("NCCL communicator was aborted"), True, "another rank is gone"),
        (RuntimeError("failed to recv, got 0 bytes"), True, "another rank is gone"),
        (RuntimeError("mat1 and mat2 shapes"), False, "RuntimeError: mat1 and mat2 shapes"),
        (KeyError("pixels"), False, "KeyError: 'pixels'"),
        (ValueError("sample '3': too long\nmore"), False, "sample '3': too long"),
        (ChannelError("rank 0 did not publish"), True, "rank 0 did not publish"),
        (LostRankError("late"), True, "late"),
        (TransportError("the two ranks run different plans"), False, "the two ranks run different plans"),
    ],
)
def test_losses_are_told_from_errors_of_this_rank(error: Exception, loss: bool, words: str) -> None:
    assert is_loss(error) == loss
    assert sentence_of(error) == words
