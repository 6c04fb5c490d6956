"""The next step's plan handed over while the step before runs, so that no rank waits for it between steps."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from ds_dip.planner.channel import Channel, ChannelError
from ds_dip.planner.client import PlannerClient
from ds_dip.planner.record import StepPlan

#: Seconds between two looks for a record: the first, doubled up to the longest.
_LOOKS = (0.002, 0.1)
#: Seconds that a thread gets to end.
_END = 2.0


class _Errand(ABC):
    """A thread that does one thing after another, each until it is done or another one is wanted."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._wanted: object = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._wanted, self._closed = None, True
            self._changed.notify_all()
        self._thread.join(_END)

    def _want(self, what: object) -> None:
        with self._changed:
            self._wanted = what
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._wanted is not None)
                if self._closed:
                    return
                wanted = self._wanted
            self._attempt(wanted)

    @abstractmethod
    def _attempt(self, wanted: object) -> None:
        """Try once; where it is done, nothing is wanted any more."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A step's plan and its record, decided on before the step was asked for; ``published`` where the store has it."""

    plan: StepPlan
    record: bytes
    published: bool


class PublishAhead(_Errand):
    """A leader's: publishes the plan of the step that is next, as soon as the planner has sent it."""

    def __init__(self, client: PlannerClient, publish: Callable[[int, StepPlan, bytes], None]) -> None:
        self._client, self._publish = client, publish
        self._decided: tuple[int, Decided] | None = None
        super().__init__("publish-ahead")

    def look_for(self, step: int | None) -> None:
        """Publish this step's plan when it comes; None for no step."""
        with self._changed:
            self._decided = None
        self._want(step)

    def take(self, step: int) -> Decided | None:
        """What was decided on for the step; from now on nothing is."""
        with self._changed:
            self._wanted, decided, self._decided = None, self._decided, None
        return decided[1] if decided is not None and decided[0] == step else None

    def _attempt(self, wanted: object) -> None:
        assert isinstance(wanted, int)
        found = self._client.peek(wanted, _LOOKS[1])
        with self._changed:
            if found is None or self._wanted != wanted:
                return
            self._wanted = None
            try:
                self._publish(wanted, *found)
                published = True
            except ChannelError:
                # The store may have the record all the same, and another rank have read it: the decision stands.
                # Whoever asks for the step publishes it again, or tells that the store is gone.
                published = False
            self._decided = wanted, Decided(*found, published)


class ReadAhead(_Errand):
    """A follower's: reads and checks the next record as soon as it is published."""

    def __init__(self, channel: Channel, read: Callable[[bytes], StepPlan]) -> None:
        self._channel, self._read = channel, read
        self._found: tuple[str, StepPlan] | None = None
        self._pause = _LOOKS[0]
        super().__init__("read-ahead")

    def look_for(self, name: str | None) -> None:
        """Read this record when it is there; None for none."""
        with self._changed:
            self._found, self._pause = None, _LOOKS[0]
        self._want(name)

    def take(self, name: str) -> StepPlan | None:
        """The record of this name, if it has been read; from now on none is."""
        with self._changed:
            self._wanted, found, self._found = None, self._found, None
        return found[1] if found is not None and found[0] == name else None

    def _attempt(self, wanted: object) -> None:
        assert isinstance(wanted, str)
        try:
            record = self._channel.poll(wanted)
            plan = None if record is None else self._read(record)
        except Exception:  # noqa: BLE001  # whoever asks for this record meets the same error, and tells
            record, plan = b"", None
        with self._changed:
            if self._wanted != wanted:
                return
            if record is None:
                self._changed.wait(self._pause)
                self._pause = min(2 * self._pause, _LOOKS[1])
            else:
                self._found, self._wanted = None if plan is None else (wanted, plan), None
