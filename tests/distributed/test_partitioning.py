"""partition_method on several ranks: one search, one answer, one sentence where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds_dip.models.partition import partition_hash
from ds_dip.partition.methods import partition_by
from ds_dip.runtime import partition_for
from tests.distributed.partitioning import CONFIG
from tests.distributed.ranks import run_ranks
from tests.partition_cases import QUICKSTART


def test_all_ranks_build_the_partition_that_the_first_one_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ds_dip.data import DatasetReference

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ranks = run_ranks("tests.distributed.partitioning", 2)
    data = DatasetReference("ds_dip.data.digits:Digits", {"samples": 400})
    wanted = {
        "profile": partition_for(QUICKSTART, CONFIG, 2, method="profile", training_data=data),
        "uniform": partition_by("uniform", QUICKSTART, 2),
    }
    for rank, rows in enumerate(ranks):
        assert [row["method"] for row in rows[:2]] == ["profile", "uniform"]
        for row in rows[:2]:
            partition = wanted[row["method"]]
            assert row["partition"] == partition_hash(partition)
            assert row["layers"] == {f"{c.module}.{c.index}": c.stop - c.start for c in partition.on(rank)}
        assert "the global batch is 16 samples and the dataset holds 8" in rows[2]["error"]
    assert len(list((tmp_path / "ds_dip").iterdir())) == 1
