"""Messages over a socket pair: whole, within deadlines, and refused when they are none."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.planner.wire import BACKLOG, LARGEST, GarbageError, Wire, WireError
from tests.planner_cases import FEW


@pytest.fixture
def pair() -> Iterator[tuple[Wire, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Wire(ours), theirs


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@FEW
@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 64))
def test_messages_arrive_whole_in_whatever_pieces(payloads: list[bytes], piece: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire, stream = Wire(ours), b"".join(framed(msgpack.packb(["x", payload])) for payload in payloads)
        arrived = []
        for start in range(0, len(stream), piece):
            theirs.sendall(stream[start : start + piece])
            while (message := wire.receive(0.0)) is not None:
                arrived.append(message)
        assert arrived == [["x", payload] for payload in payloads]


def test_nothing_within_the_deadline_is_none(pair: tuple[Wire, socket.socket]) -> None:
    assert pair[0].receive(0.0) is None
    assert pair[0].receive(0.01) is None


def test_a_peer_that_is_gone_is_an_error_at_once(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    theirs.close()
    with pytest.raises(WireError, match="closed the connection"):
        wire.receive(60.0)
    with pytest.raises(WireError, match="gone"):
        wire.send(["x"])


def test_what_arrived_before_the_end_is_still_read(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    theirs.sendall(framed(msgpack.packb(["last"])))
    theirs.close()
    assert wire.receive(60.0) == ["last"]
    with pytest.raises(WireError):
        wire.receive(60.0)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (struct.pack(">I", LARGEST + 1), "was announced"),
        (framed(b"\xc1"), "not msgpack"),
        (framed(msgpack.packb({"a": 1})), "expected a list"),
        (framed(msgpack.packb([1, 2])), "starts with its name"),
        (framed(b""), "not msgpack"),
    ],
)
def test_garbage_is_refused(pair: tuple[Wire, socket.socket], stream: bytes, message: str) -> None:
    pair[1].sendall(stream)
    with pytest.raises(GarbageError, match=message):
        pair[0].receive(60.0)


def test_sending_to_a_peer_that_does_not_read_never_blocks_and_ends_in_an_error(
    pair: tuple[Wire, socket.socket],
) -> None:
    def flood() -> None:
        for _ in range(2 * BACKLOG // 2**18):
            pair[0].send(["x", bytes(2**18)])

    with pytest.raises(WireError, match="left .* bytes unread"):
        flood()


def test_what_could_not_be_sent_goes_along_with_the_next_message(pair: tuple[Wire, socket.socket]) -> None:
    wire, theirs = pair
    reader = Wire(theirs)
    sent: list[list[object]] = [["x", index, bytes(2**18)] for index in range(8)]
    for message in sent:
        wire.send(message)
    arrived: list[list[object]] = []
    while len(arrived) < len(sent):
        wire.send(["more"])
        while (taken := reader.receive(0.0)) is not None:
            arrived += [taken] if taken != ["more"] else []
    assert arrived == sent
