"""Links of ranks that are threads, as strict as any backend: what is not next at both ends does not pass."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import torch

from ds_dip.programs.program import Message
from tests.test_executor import dtype_of

#: Seconds after which ranks that wait for each other are called stuck.
STUCK_S = 5.0


class StrictLinks:
    """Links of ranks that are threads: a rank has one queue for all its posts, and nothing in it overtakes."""

    def __init__(self, ranks: int) -> None:
        self.changed = threading.Condition()
        self.queues: list[deque[tuple[int, bool]]] = [deque() for _ in range(ranks)]
        self.tensors: dict[int, list[torch.Tensor]] = {}
        self.passed: set[int] = set()

    def post(self, rank: int, message: Message, *, sends: bool) -> None:
        with self.changed:
            self.queues[rank].append((message.id, sends))
            peer = message.receiver if sends else message.sender
            while self.queues[rank] and self.queues[peer]:
                (mine, _), (theirs, _) = self.queues[rank][0], self.queues[peer][0]
                if mine != theirs:
                    break
                self.queues[rank].popleft()
                self.queues[peer].popleft()
                self.passed.add(mine)
                self.changed.notify_all()
                # What was behind may pass now, towards others too.
                self.drain()

    def drain(self) -> None:
        moved = True
        while moved:
            moved = False
            heads: dict[int, list[int]] = {}
            for rank, queue in enumerate(self.queues):
                if queue:
                    heads.setdefault(queue[0][0], []).append(rank)
            for message, ranks in heads.items():
                if len(ranks) == 2:
                    for rank in ranks:
                        self.queues[rank].popleft()
                    self.passed.add(message)
                    moved = True
        self.changed.notify_all()

    def wait(self, message: Message) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: message.id in self.passed, STUCK_S):
                raise TimeoutError(f"message {message.id} did not pass")


class StrictTransport:
    """A rank's end; tensors must be what the message says, as a buffer of that size would demand."""

    def __init__(self, links: StrictLinks, rank: int) -> None:
        self.links, self.rank = links, rank

    def post_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        assert message.sender == self.rank
        found = tuple((tuple(t.shape), t.dtype) for t in tensors)
        assert found == tuple((shape, dtype_of(name)) for shape, name in message.tensors)
        with self.links.changed:
            self.links.tensors[message.id] = [tensor.detach().clone() for tensor in tensors]
        self.links.post(self.rank, message, sends=True)

    def post_receive(self, message: Message) -> None:
        assert message.receiver == self.rank
        self.links.post(self.rank, message, sends=False)

    def wait_receive(self, message: Message) -> list[torch.Tensor]:
        self.links.wait(message)
        return self.links.tensors[message.id]

    def wait_send(self, message: Message) -> None:
        self.links.wait(message)
