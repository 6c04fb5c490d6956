"""The motivation's stages and bubbles."""

from __future__ import annotations

import pytest

from ds_dip.reproduction.motivation import BACKBONE, ENCODER, MICROBATCHES, STAGES, _problem, bubble, separated, split
from ds_dip.scheduling import one_f_one_b, retime


def test_no_contiguous_split_has_a_faster_slowest_stage() -> None:
    stages = split()
    assert len(stages) == STAGES
    assert max(stages) / min(stages) == pytest.approx(1.167, abs=1e-3)
    # By exhaustion: stages of only encoder layers, one that may hold both, stages of only backbone layers.
    (encoder, first), (backbone, second) = ENCODER, BACKBONE
    best = min(
        max(-(-(encoder - a) // (own or 1)) * first if own else 0.0, a * first + b * second, rest)
        for own in range(STAGES)
        for a in ((encoder,) if not own else range(encoder))
        for b in range(backbone + 1)
        for rest in [
            -(-(backbone - b) // max(1, STAGES - 1 - own)) * second if own < STAGES - 1 or b == backbone else 1e9
        ]
    )
    assert max(stages) == pytest.approx(best)


def test_chunks_hold_every_layer_once() -> None:
    total = sum(count * seconds for count, seconds in (ENCODER, BACKBONE))
    assert sum(split()) == pytest.approx(total)
    assert sum(separated()) == pytest.approx(total)
    assert len(separated()) == 2 * STAGES


def test_the_bubble_of_equal_stages_is_that_of_filling_and_draining() -> None:
    problem = _problem([1.0] * STAGES)
    makespan = retime(problem, one_f_one_b(problem)).makespan
    assert bubble(problem, makespan) == pytest.approx((STAGES - 1) / (MICROBATCHES + STAGES - 1))
