"""Repeats end when the median is known, or when the patience does, and then the row says why."""

from __future__ import annotations

from itertools import cycle

import pytest

from ds_dip.profiling.timing import FEWEST, Patience, Sample, note, repeat, timed


def test_medians_and_quartiles() -> None:
    seconds = Sample((1.0, 2.0, 3.0, 4.0, 100.0)).seconds
    assert (seconds.median, seconds.spread) == (3.0, 2.0)


def test_more_repeats_know_the_median_better() -> None:
    few, many = Sample((1.0, 1.1, 1.2, 1.3)), Sample((1.0, 1.1, 1.2, 1.3) * 25)
    assert many.error == pytest.approx(few.error / 5, rel=0.01)


def test_a_quiet_measurement_ends_early_and_has_no_note() -> None:
    patience = Patience(0.0, 60.0)
    samples = repeat(lambda: (1.0, 2.0), patience)
    assert [sample.seconds.median for sample in samples] == [1.0, 2.0]
    assert FEWEST <= len(samples[0].values) < 3 * FEWEST
    assert note(samples, patience) == ""


def test_a_noisy_one_ends_with_the_patience_and_says_why() -> None:
    values, patience = cycle((1.0, 5.0, 9.0)), Patience(0.0, 0.0)
    samples = repeat(lambda: (next(values),), patience)
    assert "the machine is not quiet" in note(samples, patience)
    assert f"after {len(samples[0].values)} repeats" in note(samples, patience)


def test_one_noisy_part_is_enough_for_a_note() -> None:
    values, patience = cycle((1.0, 5.0, 9.0)), Patience(0.0, 0.0)
    assert note(repeat(lambda: (1.0, next(values)), patience), patience)


def test_a_run_takes_no_less_than_nothing() -> None:
    calls = []
    assert timed(lambda: calls.append(1)) >= 0
    assert calls == [1]
