"""Replicas adopt measured costs together: gradients stay the batch's, and a run resumes across it (real ranks)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.test_checkpoint import TOLERANCE, Folder

#: Steps that are trained, and those of them before the checkpoint: what is adopted after the first one holds from the
#: fifth on, what is adopted after the seventh from the eleventh.
STEPS, SAVED, SINCE = 13, 3, (4, 10)


@pytest.mark.parametrize(("world", "ranks"), [(2, 1), (4, 2)], ids=["2x1", "2x2"])
def test_replicas_adopt_together_and_train_on_the_same_batches(world: int, ranks: int, tmp_path: Path) -> None:
    folder, train = Folder(tmp_path), ["train", STEPS]
    base: dict[str, Any] = {"ranks": ranks, "mode": "fp32-1", "planner": True}
    rest = [["train", STEPS - SAVED], ["dump", "whole"]]
    ends = [["train", STEPS - SAVED], ["dump", "resumed"]]
    jobs = [
        {**base, "name": "run", "adopts": True, "actions": [["train", SAVED], ["save", None], *rest]},
        {**base, "name": "again", "adopts": True, "seed": 7, "actions": [["load", "run"], *ends]},
        {**base, "name": "older", "adopts": True, "older": True, "actions": [["train", 1], ["save", None]]},
        {**base, "name": "older again", "adopts": True, "actions": [["load", "older"], ["train", 1]]},
        {**base, "name": "static", "actions": [train]},
        {**base, "name": "in turn", "balanced": False, "actions": [train, ["dump", "in turn"]]},
        {**base, "name": "measured", "measured": True, "adopts": True, "actions": [train]},
    ]
    rows = folder.run(world, *jobs)
    run, again, older, older_again, static, in_turn, measured = rows[0]
    for other in rows[1:]:
        for mine, theirs in zip(rows[0], other, strict=True):
            assert [step for step, _ in theirs["assigned"]] == [step for step, _ in mine["assigned"]]
            assert (theirs["adopted"], theirs["losses"]) == (mine["adopted"], mine["losses"])

    # Every step by what holds for it: replica 0's lines, from the steps on that nobody had planned.
    assert [since for since, _ in run["adopted"]] == [*SINCE]
    assert "factor=40.0" in run["adopted"][0][1]
    assert [bool(lines) for _, lines in run["assigned"]] == [step >= SINCE[0] for step in range(STEPS)]
    assert run["assigned"][: SINCE[0]] == static["assigned"][: SINCE[0]]
    changed = [step for step in range(STEPS) if run["assigned"][step][0] != static["assigned"][step][0]]
    assert {step >= SINCE[1] for step in changed} == {False, True}

    # Stopped between the adoption and its first step.
    assert again["assigned"] == run["assigned"][SAVED:]
    assert (again["adopted"], again["losses"]) == (run["adopted"], run["losses"][SAVED:])
    assert folder.difference(("whole", world), ("resumed", world)) == 0.0

    assert older["adopted"] == run["adopted"][:1]
    assert older_again["adopted"] == []

    # Wherever samples are, the gradient is that of the global batch.
    assert not static["adopted"] + in_turn["adopted"]
    for other in (run, static, measured):
        assert other["losses"] == pytest.approx(in_turn["losses"], rel=1e-5)
    assert folder.difference(("whole", world), ("in turn", world)) <= STEPS * TOLERANCE["fp32"]

    # What this machine really takes.
    assert measured["adopted"]
    assert any(lines for _, lines in measured["assigned"])
