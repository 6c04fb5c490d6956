"""A stage lasts at least as long as it was told, and what it computes is part of it."""

from __future__ import annotations

import time

from ds_dip.programs.program import Stage
from ds_dip.rehearsal.pace import EmulatedClock, wait_until, wake_punctually

FORWARD, BACKWARD = Stage("F", "vision", 0, 0, 0), Stage("B", "vision", 0, 0, 0)


def test_stages_last_at_least_what_they_are_told() -> None:
    wake_punctually()
    clock = EmulatedClock()
    clock.expect({FORWARD: 0.02, BACKWARD: 0.0})
    clock.begin()
    ran: list[str] = []
    clock.measure(FORWARD, lambda: ran.append("forward"))
    clock.measure(BACKWARD, lambda: (time.sleep(0.01), ran.append("backward"))[1])
    forward, backward = clock.end()
    assert ran == ["forward", "backward"]
    assert (forward.stage, backward.stage) == (FORWARD, BACKWARD)
    assert forward.end - forward.start >= 0.02
    assert backward.end - backward.start >= 0.01
    assert backward.start >= forward.end


def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    wait_until(time.monotonic() - 100.0)
    moment = time.monotonic() + 0.01
    wait_until(moment)
    assert time.monotonic() >= moment
