"""The engine's gradient is that of one process computing the whole global batch, whatever the plan (real ranks)."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import run_ranks

#: mode, ranks, replicas, first engine, engines, cases an engine: 120 cases in fp32, 24 in bf16.
GROUPS = [
    ("fp32", 2, 1, 0, 5, 8),
    ("fp32", 4, 1, 10, 3, 8),
    ("zero1", 2, 1, 20, 4, 8),
    ("zero1", 4, 2, 30, 3, 8),
    ("bf16", 4, 2, 40, 2, 6),
    ("bf16-accumulate", 4, 2, 50, 2, 6),
]
#: How the gradients' difference is taken and its bound, and the loss's. In fp32 per tensor, its largest entry over
#: the largest gradient (``measure`` in gradients.py says of which one process); bf16 keeps 8 bits of every activation,
#: so there it is the norm over all of a rank's tensors.
TOLERANCE = {
    "fp32": ("error", 1e-5, 1e-5),
    "zero1": ("error", 1e-5, 1e-5),
    "bf16": ("norm", 5e-2, 1e-2),
    "bf16-accumulate": ("norm", 5e-2, 1e-2),
}


#: 1 008 more cases in fp32 and ZeRO-1, 96 in bf16, in groups of a few minutes.
NIGHTLY = [
    *(("fp32", 2, 1, first, 9, 14) for first in (100, 109)),
    *(("fp32", 4, 1, first, 6, 14) for first in (120, 126, 132)),
    *(("zero1", 2, 1, first, 9, 14) for first in (140, 149)),
    *(("zero1", 4, 2, first, 6, 14) for first in (160, 166, 172)),
    *(("bf16", 4, 2, first, 3, 8) for first in (180, 183)),
    *(("bf16-accumulate", 4, 2, first, 3, 8) for first in (190, 193)),
]


def name_of(group: tuple) -> str:
    mode, world, replicas, first, *_ = group
    return f"{mode}-{world // replicas}x{replicas}-{first}"


@pytest.mark.parametrize(
    "group", [*GROUPS, *(pytest.param(g, marks=pytest.mark.nightly) for g in NIGHTLY)], ids=name_of
)
def test_gradients_and_losses_are_those_of_one_process(group: tuple) -> None:
    mode, world, replicas, first, engines, cases = group
    numbers = map(str, (world, replicas, first, engines, cases))
    results = run_ranks("tests.distributed.gradients", world, mode, *numbers, seconds=540.0)
    assert [len(rows) for rows in results] == [engines * cases] * world
    measure, gradient, loss = TOLERANCE[mode]
    for rows in results:
        for row in rows:
            assert row[measure] <= gradient, row
            assert abs(row["loss"] - row["expected"]) <= loss * abs(row["expected"]), row
            assert abs(row["evaluated"] - row["undropped"]) <= loss * abs(row["undropped"]), row
