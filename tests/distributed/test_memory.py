"""The memory that a plan predicts for a rank is what the allocator counts, whatever the strategies (real ranks)."""

from __future__ import annotations

from tests.distributed.memory import CASES, SHAPES
from tests.distributed.ranks import run_ranks


def test_the_predicted_peak_is_the_allocators_and_within_the_limit() -> None:
    results = run_ranks("tests.distributed.memory", 2)
    assert [len(rows) for rows in results] == [len(SHAPES) * len(CASES)] * 2
    for rows in results:
        for row in rows:
            assert abs(row["predicted"] / row["measured"] - 1) <= 0.05, row
            if row["limit"] is not None:
                assert row["predicted"] <= row["limit"], row
                assert row["measured"] <= 1.01 * row["limit"], row
    # All strategies are really there, and under a limit several in one plan.
    used = [row["used"] for rows in results for row in rows]
    assert {strategy for own in used for strategy in own} == {"none", "selective", "full"}
    assert max(map(len, used)) >= 2
    for shape in {row["shape"] for row in results[0]}:
        kept, some, least = (
            next(
                r["measured"]
                for r in results[0]
                if r["shape"] == shape and r["strategies"] == [name] and not r["limit"]
            )
            for name in ("none", "selective", "full")
        )
        assert least < some < kept
