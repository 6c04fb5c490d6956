"""What the planner's process does all day: it plans ahead, and learns from what steps took."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from statistics import median
from typing import Any

from ds_dip.costs.corrections import Measurement
from ds_dip.planner.adaptation import Adaptation
from ds_dip.planner.adopted import ADOPTED, Adopted
from ds_dip.planner.plan import Planner
from ds_dip.planner.record import encode_plan
from ds_dip.planner.times import decode_times
from ds_dip.planner.wire import CORRECTIONS, Wire

#: Of a step's time, what the search may take; the rest of a plan's making needs some too.
SHARE = 0.5
#: The same for a plan that is needed next: it should be there one step before.
HURRIED = 0.1


class Service:
    """Plans ahead of the step that the leader wants, and learns from what steps took."""

    def __init__(self, wire: Wire, planner: Planner, first: int) -> None:
        self._wire, self._planner, self._pace = wire, planner, Pace()
        self._adaptation = Adaptation(planner)
        self._adopted = Adopted()
        self._wanted = self._step = first
        self._generation = 0
        #: The measurements behind the lines that the leader was told last.
        self._taught: tuple[Measurement, ...] = ()

    def adopt(self, adopted: Adopted) -> None:
        """Assign by these; steps that were planned by others, as where a run is set back, are planned again."""
        before, self._adopted = self._adopted, adopted
        self._planner.batches.adopt(adopted)
        planned = range(self._wanted, self._step)
        self._step = next((step for step in planned if before.at(step) != adopted.at(step)), self._step)

    def turn(self) -> None:
        """Take a message in where there is one, else make the next plan; with nothing to do, wait."""
        idle = self._step > self._wanted + self._planner.settings.ahead
        message = self._wire.receive(None if idle else 0.0)
        if message is not None:
            self._heed(message)
        elif not idle:
            self._answer(self._step)
            self._step += 1

    def _heed(self, message: list[Any]) -> None:
        match message:
            case ["wanted", int(newest), bool(again)]:
                # A step that has begun is too late to plan.
                self._step = newest if again else max(newest, self._step)
                self._pace.at(newest, time.monotonic())
                self._wanted = newest
            case ["measured", bytes(times)]:
                tracking = self._adaptation.tracking
                if self._adaptation.take(decode_times(times)) or tracking != self._adaptation.tracking:
                    self._teach()
            case ["adopted", bytes(adopted)]:
                self.adopt(ADOPTED.decode(adopted))
            case ["corrections", bytes(corrections), int(generation)]:
                self._generation = generation
                self._adaptation.reset(CORRECTIONS.decode(corrections))
                self._taught = self._planner.corrections.window
            case _:
                raise ValueError(
                    f"a message is {repr(message)[:80]}, expected a step, its times, adopted costs or corrections"
                )

    def _teach(self) -> None:
        learned = self._planner.corrections
        if learned.window is self._taught:
            # What the lines rest on is long, and the leader has it already.
            learned = replace(learned, window=())
        else:
            self._taught = learned.window
        message = CORRECTIONS.encode(learned)
        self._wire.send(["corrections", message, self._generation, self._adaptation.tracking], 60.0)

    def _answer(self, step: int) -> None:
        began = time.perf_counter()
        budget = self._pace.budget(step - self._wanted) if self._planner.settings.paced else None
        try:
            record = encode_plan(self._planner.plan(step, budget))
        except Exception as error:  # noqa: BLE001  # a dataset may raise anything: it is told, and planning goes on
            self._wire.send(["failed", step, f"{type(error).__name__}: {error}"], 60.0)
            return
        took = time.perf_counter() - began
        self._wire.send(["plan", step, took, self._planner.reused, record], 60.0)
        tracking = self._adaptation.tracking
        self._adaptation.probe(step)
        if tracking != self._adaptation.tracking:
            self._teach()


class Pace:
    """How long training takes a step, from when steps are asked for; a search takes a share of it."""

    def __init__(self) -> None:
        self._step, self._at = -1, 0.0
        self._seconds: deque[float] = deque(maxlen=8)

    def at(self, step: int, now: float) -> None:
        """A step is asked for; other messages repeat the one before."""
        if step == self._step + 1:
            self._seconds.append(now - self._at)
        if step != self._step:
            self._step, self._at = step, now

    def budget(self, ahead: int) -> float | None:
        """Seconds of a search that keeps up, of a plan so many steps ahead; None while nothing is known."""
        share = HURRIED if ahead < 2 else SHARE
        return share * median(self._seconds) if len(self._seconds) > 1 else None
