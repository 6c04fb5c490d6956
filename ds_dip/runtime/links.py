"""Links over torch.distributed: a process group for every directed pair of ranks that the placement uses.

NCCL ignores tags and can block itself with two-way traffic on one pair, so every direction has a
group of its own and every link a fixed order of messages (ENGINE facts in docs/runtime.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
from deepspeed import comm as dist

from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model
from ds_dip.programs.program import Message
from ds_dip.runtime.threads import yielding
from ds_dip.runtime.transport import LostRankError, TransportError, describe, timed_out

#: A header's numbers in checked mode: step, message, tensors, elements, and a hash of the microbatch's content.
_HEADER = 5
#: Of the threads that carry messages where they share the ranks' cores.
_NICENESS = 15


def links_of(model: Model, partition: Partition) -> tuple[tuple[int, int], ...]:
    """The directed pairs of ranks between which activations or gradients travel, sorted."""
    pairs = set()
    for module in model.modules:
        chunks = partition.of(module.name)
        hops = [(a.rank, b.rank) for a, b in pairwise(chunks)]
        hops += [(partition.of(source)[-1].rank, chunks[0].rank) for source in model.upstream(module.name)]
        for a, b in hops:
            if a != b:
                pairs |= {(a, b), (b, a)}
    return tuple(sorted(pairs))


class LinkTransport:
    """The links of one rank of one replica.

    ``replicas`` lists the global ranks of every replica's pipeline. All processes make the groups
    of all replicas in one global order and pass one element through each link of their own, so
    that communicators exist before training starts. ``content`` hashes a microbatch as this rank
    loads it; with it, messages are checked: a header goes first and is compared.
    """

    def __init__(
        self,
        links: Sequence[tuple[int, int]],
        replicas: Sequence[Sequence[int]],
        rank: int,
        replica: int,
        *,
        device: torch.device,
        dtype: Callable[[str], torch.dtype],
        deadline_s: float,
        content: Callable[[int], int] | None = None,
    ) -> None:
        self._ranks, self._device, self._dtype = replicas[replica], device, dtype
        self._deadline, self._content = timedelta(seconds=deadline_s), content
        self.step = 0
        self._groups: dict[tuple[int, int], Any] = {}
        self._sends: dict[int, tuple[list[Any], list[torch.Tensor]]] = {}
        self._receives: dict[int, tuple[list[Any], list[torch.Tensor], torch.Tensor | None]] = {}
        with yielding(_NICENESS) if device.type == "cpu" else nullcontext():
            for index, ranks in enumerate(replicas):
                for link in links:
                    group = torch.distributed.new_group([ranks[link[0]], ranks[link[1]]], timeout=self._deadline)
                    if index == replica and rank in link:
                        self._groups[link] = group
        for link in links:
            if rank in link:
                self._warm_up(link, rank)

    def _warm_up(self, link: tuple[int, int], rank: int) -> None:
        token = torch.zeros(1, device=self._device)
        if rank == link[0]:
            dist.isend(token, self._ranks[link[1]], group=self._groups[link]).wait()
        else:
            dist.irecv(token, self._ranks[link[0]], group=self._groups[link]).wait()

    def post_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Start sending; a checked message's header goes first."""
        group, peer = self._groups[message.sender, message.receiver], self._ranks[message.receiver]
        parcels = [tensor.contiguous() for tensor in tensors]
        if self._content is not None:
            parcels.insert(0, self._header(message))
        self._sends[message.id] = ([dist.isend(parcel, peer, group=group) for parcel in parcels], parcels)

    def post_receive(self, message: Message) -> None:
        """Start receiving into fresh buffers."""
        group, peer = self._groups[message.sender, message.receiver], self._ranks[message.sender]
        buffers = [torch.empty(shape, dtype=self._dtype(name), device=self._device) for shape, name in message.tensors]
        header = torch.empty(_HEADER, dtype=torch.int64, device=self._device) if self._content else None
        parcels = buffers if header is None else [header, *buffers]
        works = [dist.irecv(parcel, peer, group=group) for parcel in parcels]
        self._receives[message.id] = (works, buffers, header)

    def wait_receive(self, message: Message) -> list[torch.Tensor]:
        """The tensors, once they have arrived; a checked message's header must be what this rank expects."""
        works, buffers, header = self._receives.pop(message.id)
        self._wait(works, message, f"rank {self._ranks[message.sender]} has not sent it")
        if header is not None:
            self._compare(header.tolist(), self._header(message).tolist(), message)
        return buffers

    def wait_send(self, message: Message) -> None:
        """Return once the tensors have left."""
        works, _ = self._sends.pop(message.id)
        self._wait(works, message, f"rank {self._ranks[message.receiver]} has not received it")

    def _wait(self, works: list[Any], message: Message, why: str) -> None:
        try:
            for work in works:
                work.wait(self._deadline)
        except RuntimeError as error:
            late = (
                f" within {self._deadline.total_seconds():g} s, and may be stuck"
                if timed_out(error)
                else " and is gone"
            )
            raise LostRankError(
                f"{describe(message)}: {why}{late}; look at that rank's log, or raise dip.timeouts.rank_s"
            ) from error

    def _header(self, message: Message) -> torch.Tensor:
        assert self._content is not None
        elements = sum(torch.Size(shape).numel() for shape, _ in message.tensors)
        content = self._content(message.source.microbatch)
        numbers = [self.step, message.id, len(message.tensors), elements, content]
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _compare(self, found: list[int], expected: list[int], message: Message) -> None:
        if found[:-1] != expected[:-1]:
            raise TransportError(
                f"{describe(message)}: the header says step, id, tensors, elements {found[:-1]}, expected "
                f"{expected[:-1]}; the two ranks run different plans"
            )
        if found != expected:
            raise TransportError(
                f"{describe(message)}: ranks {self._ranks[message.sender]} and {self._ranks[message.receiver]} load "
                "different content for the same sample ids; make the dataset give the same sample on every rank"
            )

    def close(self) -> None:
        """Drop works and buffers; the groups go with the process group."""
        self._sends.clear()
        self._receives.clear()
        self._groups.clear()
