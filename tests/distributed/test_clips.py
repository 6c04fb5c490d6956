"""Text to video trains on two ranks as on one: noise and times follow from the clips, not from the ranks."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import run_ranks


def test_two_ranks_train_as_one() -> None:
    ((alone,),) = run_ranks("tests.distributed.clips", 1)
    first, second = (rows for rows in run_ranks("tests.distributed.clips", 2))
    assert first == second
    assert first[0]["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert alone["losses"][-1] < alone["losses"][0]
    assert len(set(alone["losses"])) == 6
