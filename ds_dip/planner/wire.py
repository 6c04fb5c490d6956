"""Messages between a leader and its planner: length-prefixed msgpack lists over a socket pair."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Any

import msgpack

from ds_dip.costs.corrections import Corrections
from ds_dip.planner.codec import Codec
from ds_dip.planner.settings import PlannerSettings

#: Bytes of the longest message that is believed; a larger length is garbage.
LARGEST = 256 * 2**20
#: Bytes that may wait to be sent to a peer that does not read.
BACKLOG = 4 * 2**20
_LENGTH = struct.Struct(">I")
SETTINGS: Codec[PlannerSettings] = Codec(PlannerSettings, "settings")
CORRECTIONS: Codec[Corrections] = Codec(Corrections, "corrections")


class WireError(Exception):
    """The peer is gone or sent what is no message; nothing more can be read from it."""


class GarbageError(WireError):
    """The peer sent what is no message."""


class Wire:
    """One end of the socket pair. One thread may send while another receives.

    Leader -> planner: ``["settings", encoded settings, first step, sys.path, niceness, encoded adopted costs]`` once,
    then ``["wanted", step, again]`` (again where it was taken before), ``["measured", encoded times]``, to assign by
    them ``["adopted", encoded adopted costs]`` and, to begin anew from them,
    ``["corrections", encoded corrections, generation]``.
    Planner -> leader: ``["ready"]`` once, then ``["plan", step, seconds, reused, record]`` or
    ``["failed", step, sentence]``, and what it has learned since it began anew:
    ``["corrections", encoded corrections, generation, tracking]``.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._arrived = bytearray()
        self._unsent = bytearray()

    def send(self, message: list[Any], deadline_s: float = 0.0) -> None:
        """Send as much as the peer takes within the deadline; the rest goes along with the next message.

        Raises WireError where the peer is gone, or has left more than ``BACKLOG`` bytes unread.
        """
        body = msgpack.packb(message)
        self._unsent += _LENGTH.pack(len(body)) + body
        until = time.monotonic() + deadline_s
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0:
                    break
                select.select([], [self._socket], [], left)
                continue
            except OSError as error:
                raise WireError(f"the other end is gone ({error.strerror})") from error
            del self._unsent[:sent]
        if len(self._unsent) > BACKLOG:
            raise WireError(f"the other end has left {len(self._unsent)} bytes unread")

    def receive(self, deadline_s: float | None) -> list[Any] | None:
        """The next message; None when none has arrived within the deadline (None waits for ever).

        Raises WireError at the end of the stream and GarbageError for what is no message.
        """
        until = None if deadline_s is None else time.monotonic() + deadline_s
        while True:
            message = self._parse()
            if message is not None:
                return message
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._socket], [], [], left)[0]:
                return None
            try:
                data = self._socket.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError as error:
                raise WireError(f"the other end is gone ({error.strerror})") from error
            if not data:
                raise WireError("the other end has closed the connection")
            self._arrived += data

    def close(self) -> None:
        """Close this end; the peer reads the end of the stream."""
        self._socket.close()

    def _parse(self) -> list[Any] | None:
        if len(self._arrived) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._arrived)
        if length > LARGEST:
            raise GarbageError(f"a message of {length} bytes was announced, the largest is {LARGEST}")
        stop = _LENGTH.size + length
        if len(self._arrived) < stop:
            return None
        body = bytes(self._arrived[_LENGTH.size : stop])
        del self._arrived[:stop]
        try:
            message = msgpack.unpackb(body)
        except ValueError as error:
            raise GarbageError(f"a message is not msgpack ({error})") from error
        if not isinstance(message, list) or not message or not isinstance(message[0], str):
            raise GarbageError(f"a message is {repr(message)[:80]}, expected a list that starts with its name")
        return message
