"""``ds-dip compare``: every schedule on the same sampled batches, with spread, memory, refusals and a drawing."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.explaining.schedules import SCHEDULES
from ds_dip.partition import make_partition, write_partition
from tests.partition_cases import CONFIGS, QUICKSTART

TABLE = CONFIGS.parent / "profiling" / "tables" / "xeon-2-cores.float32.json"
DATA = [
    "--model", str(CONFIGS / "quickstart.json"), "--table", str(TABLE), "--dataset", "ds_dip.data.digits:Digits",
    "--dataset-options", '{"samples": 400}', "--batch-size", "16", "--microbatches", "4", "--batches", "3",
    "--evaluations", "40",
]  # fmt: skip


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["compare", *DATA, *(str(own) for own in arguments)])


def rows(*arguments: object, status: int = 0) -> dict[str, dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == status, result.output
    document = json.loads(result.stdout)
    assert (document["format"], document["version"]) == ("ds-dip/comparison", 1)
    return {row["schedule"]: row for row in document["schedules"]}


@pytest.fixture(scope="module")
def every() -> dict[str, dict[str, Any]]:
    return rows("--ranks", 2)


def test_every_schedule_is_told_with_bound_bubble_memory_and_spread(every: dict[str, dict[str, Any]]) -> None:
    assert set(every) == set(SCHEDULES)
    ran = [own for own in every.values() if "reason" not in own]
    assert len(ran) >= 9
    for own in ran:
        took = own["makespan_s"]
        assert len(took["batches"]) == 3
        assert took["least"] == min(took["batches"]) <= took["median"] <= took["most"] == max(took["batches"])
        assert own["lower_bound_s"]["most"] <= took["most"] * (1 + 1e-9)
        assert own["gap"] >= 0
        assert 0 <= own["bubble"]["least"] <= own["bubble"]["median"] <= own["bubble"]["most"] < 1
        assert own["activation_bytes"] > 0
        assert own["state_bytes"] > 0


def test_they_are_sorted_and_the_search_is_no_slower_than_what_it_begins_with(
    every: dict[str, dict[str, Any]],
) -> None:
    medians = [own["makespan_s"]["median"] for own in every.values() if "reason" not in own]
    assert medians == sorted(medians)
    for one, other in zip(
        every["dip"]["makespan_s"]["batches"], every["dip-greedy"]["makespan_s"]["batches"], strict=True
    ):
        assert one <= other * (1 + 1e-12)
    assert every["gpipe"]["makespan_s"]["median"] > every["dip"]["makespan_s"]["median"]


def test_without_a_limit_there_is_no_memory_strategy(every: dict[str, dict[str, Any]]) -> None:
    assert "memory is not limited" in every["dip-memory"]["reason"]


def test_a_schedule_that_does_not_fit_says_so_and_memory_strategies_make_room() -> None:
    found = rows("--ranks", 2, "--memory-gb", 0.01, "--schedules", "gpipe,dip,dip-memory")
    assert "GPipe cannot apply: needs 1.00084e+07 on rank 0, whose capacity is" in found["gpipe"]["reason"]
    assert "microbatch 0 alone needs" in found["dip"]["reason"]
    assert 0 < found["dip-memory"]["activation_bytes"] < 0.01e9
    tight = rows("--ranks", 2, "--memory-gb", 0.0005, "--schedules", "dip,dip-memory", status=1)
    assert all("which leaves nothing of 0.0005 GB" in own["reason"] for own in tight.values())


def test_all_run_on_one_partition_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    write_partition(path, QUICKSTART, make_partition(QUICKSTART, 2, {"language": 2}, {"vision": 6}))
    found = rows("--partition", path, "--same-partition")
    details = {own["detail"] for own in found.values() if own["detail"]}
    assert details == {"vision K=1 B=6, language K=2"}
    assert "ranks hold several chunks" in found["zb-h1"]["reason"]


def test_a_table_and_a_drawing_are_made(tmp_path: Path) -> None:
    plot = tmp_path / "compare.svg"
    result = run("--ranks", 2, "--schedules", "1f1b,dip,dip-memory", "--plot", plot)
    assert result.exit_code == 0, result.output
    assert "quickstart on 2 ranks, 3 batches of 16 samples in 4 microbatches" in result.output
    assert "dip-memory: as dip, every stage with a memory strategy; cannot run: memory is not limited" in result.output
    texts = [own.text for own in ET.fromstring(plot.read_text()).iter("{http://www.w3.org/2000/svg}text")]
    assert {"1f1b", "dip", "dip-memory", "bubble"} <= set(texts)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ranks", "2", "--schedules", "best"], "--schedules: best is unknown: give some of gpipe, 1f1b"),
        ([], "give the model's --partition, or how many --ranks there are"),
        (["--ranks", "2", "--plot", str(TABLE)], "is read as well and would be replaced"),
        (["--ranks", "99"], "99"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: list[str], sentence: str) -> None:
    before = TABLE.read_bytes()
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert TABLE.read_bytes() == before


def test_a_partition_of_other_ranks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    write_partition(path, QUICKSTART, make_partition(QUICKSTART, 2))
    result = run("--partition", path, "--ranks", 4)
    assert result.exit_code == 2
    assert "is for 2 ranks, and --ranks 4" in result.output


def test_the_runs_configuration_says_what_stages_choose_from_and_what_a_split_adds(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    block: dict[str, Any] = {"memory_gb": 1.0, "memory_strategies": ["none"], "split_backward": 0.25}
    config.write_text(json.dumps({"train_batch_size": 16, "gradient_accumulation_steps": 4, "dip": block}))
    arguments = ["--ranks", "2", "--deepspeed-config", str(config), "--schedules", "zb-h1,dip-memory", "--json"]
    given, free = (json.loads(run(*arguments, *more).stdout) for more in ([], ["--split-overhead", "0"]))
    assert given["memory_strategies"] == ["none"]
    assert "memory is not limited" in given["schedules"][-1]["reason"]
    took = [own["schedules"][0]["makespan_s"]["median"] for own in (given, free)]
    assert took[0] > 1.05 * took[1]
