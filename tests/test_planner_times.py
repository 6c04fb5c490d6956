"""The message of measured times: bounded, versioned, checked, and an even choice of the stages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.planner import Planner, StageTime
from ds_dip.planner.codec import CodecError
from ds_dip.planner.times import MOST, VERSION, StageSeconds, StepTimes, decode_times, encode_times, step_times
from ds_dip.programs.program import Stage
from tests.planner_cases import settings

PLAN = Planner(settings()).plan(0)


@dataclass(frozen=True)
class Measured:
    step: int
    stages: tuple[tuple[StageTime, ...], ...]
    iteration: float


def measured(*counts: int) -> Measured:
    """Ranks of so many stages, each of a length of its own."""
    number, ranks = 0, []
    for rank, count in enumerate(counts):
        ranks.append(tuple(StageTime(Stage("F", "m", rank, n, 0), 1.0, 1.0 + number + n) for n in range(count)))
        number += count
    return Measured(0, tuple(ranks), 2.0)


@hypothesis.settings(deadline=None)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_every_stage_has_its_turn_and_no_message_is_large(counts: list[int]) -> None:
    step, total = measured(*counts), sum(counts)
    every = -(-total // MOST) or 1
    seen: Counter[Stage] = Counter()
    for turn in range(every):
        times = step_times(PLAN, step, turn, 0.001)
        assert len(times.stages) <= MOST
        assert len(encode_times(times)) < 16_000
        seen.update(item.stage for item in times.stages)
        assert decode_times(encode_times(times)) == times
    assert seen == Counter(item.stage for rank in step.stages for item in rank)


def test_it_holds_the_plans_prediction_and_the_seconds() -> None:
    times = step_times(PLAN, measured(3), 0, 0.5)
    assert (times.version, times.step, times.makespan, times.iteration, times.cost) == (
        VERSION,
        0,
        PLAN.makespan,
        2,
        0.5,
    )
    assert [item.seconds for item in times.stages] == [0.0, 1.0, 2.0]


def test_a_split_backward_counts_as_one() -> None:
    first, later, other = (Stage(kind, "m", 0, n, 0) for kind, n in (("B", 0), ("W", 0), ("B", 1)))
    rank = (StageTime(first, 0.0, 1.0), StageTime(other, 1.0, 3.0), StageTime(later, 3.0, 3.5))
    times = step_times(PLAN, Measured(0, (rank,), 4.0), 0, 0.0)
    assert times.stages == (StageSeconds(first, 1.5), StageSeconds(other, 2.0))


ONE = StageSeconds(Stage("F", "m", 0, 0, 0), 1.0)
FINE = StepTimes(VERSION, 0, 1.0, 1.0, 0.0, (ONE,))


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        (replace(FINE, version=2), "measured.version is 2, expected 1"),
        (replace(FINE, stages=(ONE,) * (MOST + 1)), "expected at most 64"),
        (replace(FINE, iteration=-1.0), "negative"),
        (replace(FINE, stages=(replace(ONE, seconds=-1.0),)), "negative"),
    ],
)
def test_what_means_nothing_is_refused(times: StepTimes, sentence: str) -> None:
    with pytest.raises(CodecError, match=sentence):
        decode_times(encode_times(times))


@pytest.mark.parametrize("data", [b"", b"{}", b"[[1]]", b'[{"version": "1"}]', b"\x80\x04K\x01."])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_times(data)
