"""One record a step from a leader to the other ranks of its pipeline, through torch's store."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

#: Records that stay readable. A training step ends with a reduction that no rank leaves the others behind in; in
#: evaluations a rank without work may be some steps late.
KEPT = 8
#: How much longer than a deadline a store may take to say that it has passed.
_GRACE_S = 2.0
_T = TypeVar("_T")


def within(seconds: float, action: Callable[[], _T]) -> _T:
    """What ``action`` returns or raises, in a thread of its own; TimeoutError where it takes longer.

    For calls to a store: where the process that holds it is stopped, they outlast every time-out of their own.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return results[0]


class ChannelError(RuntimeError):
    """A record that did not come; the message names the leader, the record and the deadline."""


class Channel(Protocol):
    """Records by name, published once by the leader and read by every other rank."""

    def publish(self, name: str, record: bytes) -> None:
        """Make a record readable; all but the newest few are deleted."""
        ...

    def read(self, name: str, deadline_s: float) -> bytes:
        """The record of that name, as soon as it is there; ChannelError when the deadline has passed."""
        ...

    def poll(self, name: str) -> bytes | None:
        """The record of that name if it is there now; a thread of its own may call it beside ``read``."""
        ...


class StoreChannel:
    """A channel through a store of torch.distributed.

    Takes a client of its own (``store.clone()``): a waiting call blocks all others on its client.
    ``prefix`` keeps the pipelines of a job apart; ``leader`` is the global rank that publishes, and each time waits
    for the store at most ``publish_s``.
    """

    def __init__(self, store: Any, prefix: str, leader: int, *, publish_s: float = 60.0) -> None:
        self._store, self._prefix, self._leader, self._publish_s = store.clone(), prefix, leader, publish_s
        self._polled = store.clone()
        self._published: deque[str] = deque()

    def publish(self, name: str, record: bytes) -> None:
        """Set the record's key and delete the oldest one.

        Raises ChannelError where the store is gone.
        """
        try:
            within(self._publish_s, lambda: self._set(f"{self._prefix}/{name}", record))
        except (RuntimeError, TimeoutError) as error:
            raise ChannelError(
                f"rank {self._leader} could not publish {name!r} in the store ({_first_line(error)}); "
                "is the process that holds the store still there?"
            ) from error

    def _set(self, key: str, record: bytes) -> None:
        self._store.set(key, record)
        self._published.append(key)
        while len(self._published) > KEPT:
            self._store.delete_key(self._published.popleft())

    def read(self, name: str, deadline_s: float) -> bytes:
        """Wait for the record's key and get it.

        Raises ChannelError when the deadline has passed or the store is gone.
        """
        key = f"{self._prefix}/{name}"
        try:
            return within(deadline_s + _GRACE_S, lambda: self._get(key, deadline_s))
        except (RuntimeError, TimeoutError) as error:
            raise ChannelError(
                f"rank {self._leader}, the leader, did not publish {name!r} within {deadline_s:g} s "
                f"({_first_line(error)}); look at its log, or give it more time"
            ) from error

    def poll(self, name: str) -> bytes | None:
        """Look for the record's key; RuntimeError where the store is gone."""
        key = f"{self._prefix}/{name}"
        return bytes(self._polled.get(key)) if self._polled.check([key]) else None

    def _get(self, key: str, deadline_s: float) -> bytes:
        self._store.wait([key], timedelta(seconds=deadline_s))
        return bytes(self._store.get(key))


class MemoryChannel:
    """The same among the threads of one process."""

    def __init__(self, leader: int = 0) -> None:
        self._leader = leader
        self._records: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def publish(self, name: str, record: bytes) -> None:
        """Keep the record; the oldest beyond ``KEPT`` is dropped."""
        with self._changed:
            self._records[name] = record
            while len(self._records) > KEPT:
                del self._records[next(iter(self._records))]
            self._changed.notify_all()

    def read(self, name: str, deadline_s: float) -> bytes:
        """Wait for the record; ChannelError when the deadline has passed."""
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._records, deadline_s):
                raise ChannelError(f"rank {self._leader}, the leader, did not publish {name!r} within {deadline_s:g} s")
            return self._records[name]

    def poll(self, name: str) -> bytes | None:
        """The record if it is there."""
        with self._changed:
            return self._records.get(name)


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:200]
