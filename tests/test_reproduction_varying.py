"""Sequences drawn with more and less weight on images."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.data.documents import PackedDocuments
from ds_dip.reproduction.varying import LEAST, MOST, course, tilted

POOL = [PackedDocuments(512).metadata(index) for index in range(512)]


@given(st.floats(LEAST, MOST), st.integers(8, 40), st.integers(0, 9))
def test_few_sequences_have_the_mean_that_is_asked_for(mean: float, count: int, seed: int) -> None:
    drawn = tilted(POOL, mean, count, str(seed))
    assert len(drawn) == count
    # A step of the sum over weights may be anywhere: at most one sequence is off by all images.
    assert sum(len(own.modules["vision"]) for own in drawn) / count == pytest.approx(mean, abs=48 / count)
    assert drawn == tilted(POOL, mean, count, str(seed))


def test_images_go_up_to_the_peak_and_back() -> None:
    found = course(40)
    assert (len(found), found[0], found[-1]) == (40, LEAST, LEAST)
    assert found == pytest.approx(found[::-1])
    assert found[:20] == sorted(found[:20])
    assert max(found) > 0.95 * MOST
    assert course(5)[2] == MOST
