"""The step is that of one process: its clipped gradient, with replicas or ranks that have no image (real ranks)."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import run_ranks

#: mode, ranks, replicas, first case, cases.
GROUPS = [("zero1", 4, 2, 0, 6), ("bf16-accumulate", 4, 2, 6, 6)]
NIGHTLY = [
    ("fp32", 3, 1, 100, 18),
    ("fp32", 4, 2, 120, 18),
    ("zero1", 3, 1, 140, 18),
    ("zero1", 4, 2, 160, 18),
    ("bf16", 4, 2, 180, 18),
    ("bf16-accumulate", 4, 2, 200, 18),
]


def name_of(group: tuple) -> str:
    mode, world, replicas, first, _ = group
    return f"{mode}-{world // replicas}x{replicas}-{first}"


@pytest.mark.parametrize(
    "group", [*GROUPS, *(pytest.param(g, marks=pytest.mark.nightly) for g in NIGHTLY)], ids=name_of
)
def test_weights_move_by_the_clipped_gradient_of_the_whole_model(group: tuple) -> None:
    mode, world, replicas, first, cases = group
    results = run_ranks("tests.distributed.updates", world, mode, *map(str, (world, replicas, first, cases)))
    ends = [rows.pop() for rows in results]
    assert [len(rows) for rows in results] == [cases] * world
    measure, bound = ("relative", 5e-2) if mode.startswith("bf16") else ("error", 1e-5)
    for rows in results:
        for row in rows:
            assert row[measure] <= bound, row
            assert abs(row["told"] - row["norm"]) <= bound * row["norm"], row
    assert any(not sum(row["pictures"]) for row in results[0])
    assert any(row["clip"] < row["norm"] for row in results[0])
    # A NaN on one replica stops all of them, before the step, and names the rank that saw it.
    (told,) = {end["told"] for end in ends}
    culprit = int(told.split("rank ")[1].split(":")[0])
    assert "the loss of language" in told
    assert ends[culprit]["replica"] == replicas - 1
    assert all(end["kept"] for end in ends)
