"""A run's partition: its file, its laps, DeepSpeed's methods, and a search on its own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_dip.config import ConfigError
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.data import DatasetReference
from ds_dip.data.digits import Digits
from ds_dip.partition import make_partition, write_partition
from ds_dip.partition.methods import partition_by
from ds_dip.partition.scoring import Scorer
from ds_dip.partition.search import search
from ds_dip.partition.workload import Workload, draw
from ds_dip.planner.ordering import schedulers
from ds_dip.runtime import partition_for
from tests.partition_cases import QUICKSTART, schedule

DATA = DatasetReference("ds_dip.data.digits:Digits", {"samples": 400})
CONFIG: dict[str, Any] = {"train_batch_size": 16, "gradient_accumulation_steps": 4}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ds_dip"


def profiled(dip: dict[str, Any] | None = None, **more: Any) -> Any:
    config = CONFIG | {"dip": {"planner": {"evaluations": 0}} | (dip or {})}
    return partition_for(QUICKSTART, config, 2, method="profile", **({"training_data": DATA} | more))


def test_the_file_is_read_and_laps_are_cut_without_a_method(tmp_path: Path) -> None:
    partition = make_partition(QUICKSTART, 2, {"language": 2})
    write_partition(tmp_path / "p.json", QUICKSTART, partition)
    assert partition_for(QUICKSTART, {"dip": {"partition": str(tmp_path / "p.json")}}, 2) == partition
    assert partition_for(QUICKSTART, {"dip": {"laps": {"language": 2}}}, 2) == partition
    with pytest.raises(ConfigError, match="made for 2 pipeline ranks, and this run has 3"):
        partition_for(QUICKSTART, {"dip": {"partition": str(tmp_path / "p.json")}}, 3)
    with pytest.raises(ConfigError, match=r"partition_method is 'profile', and \"dip.partition\" names a file"):
        partition_for(QUICKSTART, {"dip": {"partition": str(tmp_path / "p.json")}}, 2, method="profile")


@pytest.mark.parametrize("method", ["uniform", "parameters", "type:block"])
def test_deepspeeds_methods_cut_with_the_configured_laps(method: str) -> None:
    dip = {"laps": {"language": 2}, "sub_microbatch": {"vision": 4}}
    expected = partition_by(method, QUICKSTART, 2, {"language": 2}, {"vision": 4})
    assert partition_for(QUICKSTART, {"dip": dip}, 2, method=method) == expected


def test_profile_gives_what_the_search_finds_for_the_runs_batches(cache: Path) -> None:
    dataset = Digits(400)
    workload = Workload(draw(400, dataset.metadata, 16, 8, 0), 4)
    own = Scorer(QUICKSTART, workload, Roofline(QUICKSTART, Rates()), schedule)
    final = own.by(schedulers("dip", 50)[1])
    expected = search(own, 2, None, None, final).best.partition
    assert profiled({"planner": {"evaluations": 50}}) == expected
    assert len(list(cache.iterdir())) == 1


def test_profile_is_searched_once_for_the_same_inputs(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = profiled()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("searched again")

    monkeypatch.setattr("ds_dip.partition.offline.search", refuse)
    assert profiled() == first
    with pytest.raises(AssertionError, match="searched again"):
        profiled({"memory_gb": 1.0})


def test_a_cache_that_cannot_be_written_is_done_without(cache: Path) -> None:
    expected = profiled()
    for path in cache.iterdir():
        path.unlink()
    cache.rmdir()
    cache.write_text("no folder")
    assert profiled() == expected
    assert cache.read_text() == "no folder"


def test_configured_laps_and_sizes_are_kept() -> None:
    partition = profiled({"laps": {"vision": 3}, "sub_microbatch": {"vision": 2}})
    assert partition.of("vision")[-1].segment == 2
    assert dict(partition.sub_microbatch)["vision"] == 2


def test_a_configured_placement_is_kept() -> None:
    for placement in ("looped", "zigzag"):
        partition = profiled({"placement": placement, "laps": {"vision": 1, "language": 1}})
        ranks = [chunk.rank for chunk in partition.of("language")]
        assert ranks == ([0, 1] if placement == "looped" else [1, 0])


def test_profile_keeps_within_the_configured_memory(cache: Path) -> None:
    profiled({"memory_gb": 0.008, "laps": {"vision": 2, "language": 2}})
    (path,) = cache.iterdir()
    assert all(row["activation_bytes"] <= 8e6 for row in json.loads(path.read_text())["memory"])
    with pytest.raises(ValueError, match="no partition of quickstart on 2 ranks fits"):
        profiled({"memory_gb": 0.0001})


def test_profile_needs_the_runs_data_and_batch() -> None:
    with pytest.raises(ConfigError, match="partition_method is 'profile'.*give training_data"):
        profiled(training_data=None)
    with pytest.raises(ValueError, match="train_batch_size is missing"):
        partition_for(QUICKSTART, {}, 2, method="profile", training_data=DATA)
