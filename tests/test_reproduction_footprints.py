"""Memory over time."""

from __future__ import annotations

import pytest

from ds_dip.reproduction.footprints import footprint, line, middle
from ds_dip.scheduling import Schedule, interleave, retime
from ds_dip.scheduling.instances import multimodal, strategic


@pytest.mark.parametrize("choice", [None, 0, 1, 2])
def test_the_most_over_time_is_the_schedules_peak(choice: int | None) -> None:
    problem = multimodal(4, 6, 3)
    schedule = interleave(problem)
    if choice is not None:
        problem = strategic(problem)
        schedule = Schedule(schedule.order, (choice,) * len(problem.pairs))
    times = retime(problem, schedule)
    for steps, peak in zip(footprint(problem, schedule), times.peak_memory, strict=True):
        assert max(held for _, held in steps) == pytest.approx(peak)
        assert steps[0] == (0.0, 0.0)
        assert steps[-1][1] == pytest.approx(0.0, abs=1e-9)
        drawn = line(steps, times.makespan, 1e9)
        assert max(held for _, held in drawn) == pytest.approx((peak + 1e9) / 1e9)
        assert [time for time, _ in drawn] == sorted(time for time, _ in drawn)


def test_what_comes_and_goes_is_of_the_middle_half() -> None:
    steps = [(0.0, 100.0), (1.0, 2.0), (2.0, 4.0), (3.0, 50.0)]
    assert middle(steps, 4.0) == (2.0, 1.0)
    assert middle([(0.0, 7.0)], 4.0) == (0.0, 0.0)
