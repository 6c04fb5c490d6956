"""Conversations with real pictures train on real ranks, packed, and ranks that see other samples are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks
from tests.media_cases import tiny_model


def test_two_ranks_train_on_packed_conversations(tmp_path: Path) -> None:
    path = Path(tiny_model(tmp_path))
    path.write_text(path.read_text().replace('"layers": 1', '"layers": 2'))
    ranks = run_ranks("tests.distributed.conversations", 2, str(tmp_path))
    for refused, trained in ranks:
        assert refused["refused"].startswith("rank 1 finds other samples in the dataset than rank 0")
        assert sum(trained["packs"]) == 6 > len(trained["packs"])
        assert trained["loss"] == pytest.approx(trained["expected"], rel=1e-5)
        assert trained["apart"] <= 1e-4
        assert trained["losses"][-1] < 0.9 * trained["losses"][0]
        assert trained["losses"] == ranks[0][1]["losses"]
