"""How messages travel: the seam under the runtime, with a twin in memory for ranks that are threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from ds_dip.programs.program import Message


class TransportError(RuntimeError):
    """A message that did not come or does not fit; the message says which, between whom and what to do."""


class LostRankError(TransportError):
    """A message that did not come because its sender or receiver is gone or late."""


def timed_out(error: BaseException) -> bool:
    """Whether a communication's error says that its deadline passed, rather than that the peer is gone."""
    return "timed out" in str(error).lower() or "timeout" in str(error).lower()


def lost_rank(error: BaseException) -> bool:
    """Whether an error is a backend's way to say that another rank does not answer any more."""
    text = str(error).lower()
    return timed_out(error) or any(
        sign in text
        for sign in (
            "connection closed",
            "connection reset",
            "connection refused",
            "nccl",
            "broken pipe",
            "got 0 bytes",
        )
    )


class Transport(Protocol):
    """Posts and waits of one rank. Posts never block; waits have a deadline and raise LostRankError."""

    def post_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Start sending; the tensors are kept until ``wait_send``."""
        ...

    def post_receive(self, message: Message) -> None:
        """Start receiving into buffers of the message's shapes."""
        ...

    def wait_receive(self, message: Message) -> list[torch.Tensor]:
        """The tensors, once they have arrived."""
        ...

    def wait_send(self, message: Message) -> None:
        """Return once the tensors have left."""
        ...


def describe(message: Message) -> str:
    """A message in words, for errors."""
    source, target = message.source, message.target
    return (
        f"message {message.order} of link {message.sender} -> {message.receiver} ({source.kind} {source.module}."
        f"{source.chunk} to {target.module}.{target.chunk}, microbatch {source.microbatch}, sub {source.sub})"
    )


class MemoryLinks:
    """Links between ranks that are threads of one process; ``transport(rank)`` is a rank's end."""

    def __init__(self, deadline_s: float = 60.0) -> None:
        self._deadline = deadline_s
        self._changed = threading.Condition()
        self._sent: dict[int, list[torch.Tensor]] = {}
        self._wanted: set[int] = set()

    def transport(self, rank: int) -> MemoryTransport:
        """The end of all links at one rank."""
        return MemoryTransport(self, rank)

    def send(self, message: Message, tensors: list[torch.Tensor]) -> None:
        """Hand tensors over."""
        with self._changed:
            self._sent[message.id] = tensors
            self._changed.notify_all()

    def want(self, message: Message) -> None:
        """Ask for a message."""
        with self._changed:
            self._wanted.add(message.id)
            self._changed.notify_all()

    def met(self, message: Message) -> list[torch.Tensor]:
        """Wait until both ends have posted; the tensors."""
        end = time.monotonic() + self._deadline
        with self._changed:
            while message.id not in self._sent or message.id not in self._wanted:
                left = end - time.monotonic()
                if left <= 0:
                    raise LostRankError(f"{describe(message)} did not pass within {self._deadline:g} s")
                self._changed.wait(left)
            return self._sent[message.id]


class MemoryTransport:
    """One rank's end of MemoryLinks; a rendezvous like gloo's: a send ends when its receive is posted."""

    def __init__(self, links: MemoryLinks, rank: int) -> None:
        self._links, self._rank = links, rank

    def post_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Hand over copies, as a wire would."""
        self._links.send(message, [tensor.detach().clone() for tensor in tensors])

    def post_receive(self, message: Message) -> None:
        """Ask for the message."""
        self._links.want(message)

    def wait_receive(self, message: Message) -> list[torch.Tensor]:
        """The tensors, once sent."""
        return self._links.met(message)

    def wait_send(self, message: Message) -> None:
        """Return once the receive is posted."""
        self._links.met(message)
