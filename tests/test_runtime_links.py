"""Links are the directed pairs of ranks between which tensors travel; the twin in memory keeps deadlines."""

from __future__ import annotations

import pytest
import torch

from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Layer, Model, Module
from ds_dip.programs.program import Message, Stage
from ds_dip.runtime.links import links_of
from ds_dip.runtime.transport import MemoryLinks, TransportError


def chain(name: str, ranks: list[int]) -> list[Chunk]:
    return [Chunk(name, index, 0, rank, index, index + 1) for index, rank in enumerate(ranks)]


def model(*names: str) -> Model:
    modules = tuple(Module(name, (Layer("toy", ()),) * 8) for name in names)
    return Model("m", modules, tuple((name, names[-1]) for name in names[:-1]))


def test_a_ring_has_both_directions_of_every_hop() -> None:
    partition = Partition(4, tuple(chain("language", [0, 1, 2, 3, 0, 1, 2, 3])), ())
    hops = {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert set(links_of(model("language"), partition)) == hops | {(b, a) for a, b in hops}


def test_an_encoder_is_linked_from_its_last_rank_to_the_backbones_first() -> None:
    partition = Partition(3, (*chain("vision", [0, 1]), *chain("language", [2])), ())
    assert links_of(model("vision", "language"), partition) == ((0, 1), (1, 0), (1, 2), (2, 1))


def test_one_rank_has_no_link() -> None:
    assert links_of(model("language"), Partition(1, tuple(chain("language", [0, 0])), ())) == ()


def test_a_message_that_never_comes_is_named_when_its_deadline_has_passed() -> None:
    stage = Stage("F", "vision", 3, 1, 2)
    message = Message(0, stage, Stage("F", "language", 0, 1, 0), 0, 1, 5, (((2,), "compute"),))
    transport = MemoryLinks(0.01).transport(1)
    transport.post_receive(message)
    with pytest.raises(TransportError, match=r"message 5 of link 0 -> 1 \(F vision.3 to language.0, microbatch 1"):
        transport.wait_receive(message)


def test_what_is_sent_is_what_arrives_even_if_the_sender_writes_on() -> None:
    links = MemoryLinks(1.0)
    message = Message(0, Stage("F", "a", 0, 0, 0), Stage("F", "a", 1, 0, 0), 0, 1, 0, (((2,), "compute"),))
    tensor = torch.ones(2)
    links.transport(0).post_send(message, [tensor])
    tensor += 1
    links.transport(1).post_receive(message)
    assert links.transport(1).wait_receive(message)[0].tolist() == [1.0, 1.0]
