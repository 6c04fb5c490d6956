"""The planner's own process: how long its search may take."""

from __future__ import annotations

import pytest

from ds_dip.planner.service import HURRIED, SHARE, Pace


def test_a_search_takes_a_share_of_a_step() -> None:
    pace = Pace()
    assert pace.budget(2) is None
    for step, now in ((4, 10.0), (5, 12.0), (5, 12.5), (6, 14.0), (7, 16.0)):
        pace.at(step, now)
    assert pace.budget(2) == pytest.approx(2.0 * SHARE)
    assert pace.budget(1) == pytest.approx(2.0 * HURRIED)


def test_an_evaluation_or_a_resumed_run_between_steps_is_no_step() -> None:
    pace = Pace()
    for step, now in ((0, 0.0), (1, 1.0), (2, 2.0), (9, 100.0), (10, 101.0), (3, 200.0), (4, 201.0)):
        pace.at(step, now)
    assert pace.budget(3) == pytest.approx(1.0 * SHARE)
