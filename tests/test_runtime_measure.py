"""The measured timeline: one clock, from the batch's start; the bubble is the time in which ranks ran no stage."""

from __future__ import annotations

import pytest

from ds_dip.programs.program import Stage
from ds_dip.runtime.measure import combine

A, B = Stage("F", "language", 0, 0, 0), Stage("F", "language", 1, 0, 0)


def test_times_count_from_the_first_request_for_a_plan() -> None:
    # began, planned, ended, then start and end of each stage
    measured = combine(7, [[A], [B]], [[10.0, 10.5, 11.0, 12.0], [10.2, 10.3, 12.0, 13.0]], 14.5)
    assert measured.step == 7
    assert (measured.stages[0][0].start, measured.stages[0][0].end) == (1.0, 2.0)
    assert (measured.stages[1][0].start, measured.stages[1][0].end) == (2.0, 3.0)
    assert measured.waited == pytest.approx(0.5)
    assert measured.executed == pytest.approx(2.0)
    assert measured.iteration == pytest.approx(4.5)


def test_the_bubble_is_the_idle_share() -> None:
    measured = combine(0, [[A], [B]], [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 2.0]], 2.0)
    assert measured.bubble == pytest.approx(0.5)


def test_a_rank_without_stages_is_all_bubble() -> None:
    measured = combine(0, [[A], []], [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]], 2.0)
    assert measured.bubble == pytest.approx(0.5)
    assert measured.stages[1] == ()


def test_no_stage_at_all_is_no_bubble() -> None:
    assert combine(0, [[]], [[0.0, 0.0]], 1.0).bubble == 0.0
