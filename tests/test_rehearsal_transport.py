"""Messages arrive whole and not before they are due; both transports give the gradients of one process."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from ds_dip.programs import compile_programs, replay
from ds_dip.programs.program import Message, Stage
from ds_dip.rehearsal.transport import BlockingTransport, EmulatedTransport
from ds_dip.runtime.executor import Executor
from ds_dip.runtime.transport import MemoryLinks
from tests.cases import random_case
from tests.test_executor import Compute, dtype_of, largest_error, loaded

TENSORS = (((2, 3), "compute"), ((4,), "int64"), ((), "bool"))
MESSAGE = Message(7, Stage("F", "vision", 0, 0, 0), Stage("F", "vision", 1, 0, 0), 0, 1, 0, TENSORS)
SENT = [torch.arange(6, dtype=torch.float64).view(2, 3), torch.tensor([1, -2, 3, 1 << 40]), torch.tensor(True)]


@pytest.mark.parametrize("kind", [EmulatedTransport, BlockingTransport])
def test_a_message_arrives_whole_and_takes_its_time(kind: Any) -> None:
    links = MemoryLinks(10.0)
    sender, receiver = (kind(links.transport(rank), lambda _: 0.03, dtype_of) for rank in (0, 1))
    began = time.monotonic()

    def receive() -> list[torch.Tensor]:
        receiver.post_receive(MESSAGE)
        return receiver.wait_receive(MESSAGE)

    with ThreadPoolExecutor(1) as pool:
        arrived = pool.submit(receive)
        sender.post_send(MESSAGE, SENT)
        posted = time.monotonic() - began
        tensors = arrived.result(timeout=10)
        sender.wait_send(MESSAGE)
    assert time.monotonic() - began >= 0.03
    if kind is BlockingTransport:
        assert posted >= 0.03
    for got, sent in zip(tensors, SENT, strict=True):
        assert got.dtype == sent.dtype
        assert torch.equal(got, sent)
    assert all(seconds >= 0 for seconds in receiver.late)


@pytest.mark.parametrize("kind", [EmulatedTransport, BlockingTransport])
@pytest.mark.parametrize("seed", range(24))
def test_whatever_the_plan_no_rank_waits_in_a_circle_and_gradients_are_right(seed: int, kind: Any) -> None:
    case = random_case(seed, ranks=2 + seed % 3)
    layers, wanted = case.toy.layers(), case.toy.layers()
    (batch,), plan = case.batches, case.plan(0)
    programs = compile_programs(
        plan.problem, plan.order, plan.start, plan.end, batch, case.toy.model, case.partition, link_depth=2
    )
    replay(programs)
    links = MemoryLinks(20.0)

    def work(rank: int) -> None:
        executor = Executor(
            case.toy.model,
            case.partition,
            Compute(layers, batch.loss_count),
            kind(links.transport(rank), lambda _: 0.0, dtype_of),
            lambda *stage: loaded(case.dataset, *stage),
            device=torch.device("cpu"),
            dtype=dtype_of,
        )
        executor.begin(programs[rank], batch, train=True)
        for instruction in programs[rank].instructions:
            executor.execute(instruction)
        executor.finish()

    with ThreadPoolExecutor(case.partition.ranks) as pool:
        for future in [pool.submit(work, rank) for rank in range(case.partition.ranks)]:
            future.result(timeout=60)
    case.toy.reference(case.dataset, case.samples, batch.loss_count, wanted)
    assert largest_error(layers, wanted) <= 1e-10
