"""Links on which a message takes as long as the one that it stands for; and links that block, for comparison."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import torch

from ds_dip.programs.program import Message
from ds_dip.rehearsal.pace import wait_until
from ds_dip.runtime.transport import Transport

#: How seconds of the monotonic clock travel, in front of a message's numbers.
_WIRE = "float64"


class EmulatedTransport:
    """A transport whose messages are there no earlier than ``delay(message)`` seconds after they were posted.

    All ranks must be on one machine, whose monotonic clock they share. A message's tensors travel as one, with the
    time it is due at. ``late`` has the seconds that messages came after that time, while they were waited for.
    """

    def __init__(
        self, links: Transport, delay: Callable[[Message], float], dtype: Callable[[str], torch.dtype]
    ) -> None:
        self._links, self._delay, self._dtype = links, delay, dtype
        self._due: dict[int, float] = {}
        self.late: list[float] = []

    def post_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Start sending."""
        due = time.monotonic() + self._delay(message)
        self._due[message.id] = due
        self._links.post_send(_packed(message), [_pack(due, tensors)])

    def post_receive(self, message: Message) -> None:
        """Start receiving."""
        self._links.post_receive(_packed(message))

    def wait_receive(self, message: Message) -> list[torch.Tensor]:
        """The tensors, once they have arrived and are due."""
        began = time.monotonic()
        (parcel,) = self._links.wait_receive(_packed(message))
        due = float(parcel[0])
        self.late.append(max(0.0, time.monotonic() - max(began, due)))
        wait_until(due)
        return _unpack(parcel, message, self._dtype)

    def wait_send(self, message: Message) -> None:
        """Return once the tensors have left: when the message is due."""
        self._links.wait_send(_packed(message))
        wait_until(self._due.pop(message.id))


class BlockingTransport:
    """The same messages by blocking calls: both ends meet, and stand still while the message travels.

    All messages of a plan follow one global order, in which programs post them; each rank makes its calls in that
    order, so none can wait for another one in a circle. A receive is made as late as that allows: when the
    stage needs it, or when something that comes after it in the order is to be sent or received.
    """

    def __init__(
        self, links: Transport, delay: Callable[[Message], float], dtype: Callable[[str], torch.dtype]
    ) -> None:
        self._links, self._delay, self._dtype = links, delay, dtype
        self._ahead: deque[Message] = deque()
        self._arrived: dict[int, torch.Tensor] = {}
        self.late: list[float] = []

    def post_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Send: back when the receiver has it."""
        self._receive(len(self._ahead))
        self._links.post_send(_packed(message), [_pack(0.0, tensors)])
        self._links.wait_send(_packed(message))
        wait_until(time.monotonic() + self._delay(message))

    def post_receive(self, message: Message) -> None:
        """Note that it is this message's turn."""
        self._ahead.append(message)

    def wait_receive(self, message: Message) -> list[torch.Tensor]:
        """Receive it, and what comes before it in the order."""
        if message.id not in self._arrived:
            self._receive(self._ahead.index(message) + 1)
        return _unpack(self._arrived.pop(message.id), message, self._dtype)

    def wait_send(self, message: Message) -> None:
        """Nothing: it has left."""

    def _receive(self, count: int) -> None:
        for message in [self._ahead.popleft() for _ in range(count)]:
            self._links.post_receive(_packed(message))
            (self._arrived[message.id],) = self._links.wait_receive(_packed(message))
            wait_until(time.monotonic() + self._delay(message))


def _packed(message: Message) -> Message:
    return replace(message, tensors=(((1 + sum(prod(shape) for shape, _ in message.tensors),), _WIRE),))


def _pack(due: float, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    wire = getattr(torch, _WIRE)
    parts = [tensor.detach().flatten().to(wire) for tensor in tensors]
    return torch.cat([torch.tensor([due], dtype=wire), *(part.cpu() for part in parts)])


def _unpack(parcel: torch.Tensor, message: Message, dtype: Callable[[str], torch.dtype]) -> list[torch.Tensor]:
    tensors, place = [], 1
    for shape, name in message.tensors:
        size = prod(shape)
        tensors.append(parcel[place : place + size].view(shape).to(dtype(name)))
        place += size
    return tensors
