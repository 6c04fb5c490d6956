"""Nothing assumes a Cartesian grid: encoder on two ranks, language model on a third, with gradients of one process."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import run_ranks


def test_an_encoder_on_two_ranks_and_a_language_model_on_one_give_the_gradients_of_one_process() -> None:
    results = run_ranks("tests.distributed.placement", 3)
    assert [len(rows) for rows in results] == [12] * 3
    for rows in results:
        for row in rows:
            assert row["error"] <= 1e-10, row
            assert row["norm"] == pytest.approx(row["expected"], rel=1e-10)
    # Both replicas really ran stages of the encoder in some cases.
    assert sum(row["forwards"] for row in results[0]) > 0
    assert sum(row["forwards"] for row in results[1]) > 0
