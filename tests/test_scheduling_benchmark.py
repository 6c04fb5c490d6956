from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from ds_dip.commands.bench_schedule import command
from ds_dip.scheduling import lower_bound, solve
from ds_dip.scheduling.benchmark import SMALL, short
from ds_dip.scheduling.curves import plot
from ds_dip.scheduling.instances import Taillard, flow_shop, multimodal


def test_the_generator_is_taillards() -> None:
    draw = Taillard(873654221)
    assert [draw.value() for _ in range(5)] == [54, 83, 15, 71, 77]
    assert lower_bound(flow_shop(20, 5, 873654221))[0] <= 1278


def test_a_batch_has_microbatches_of_unequal_images_and_the_capacity_asked_for() -> None:
    problem = multimodal(4, 12, 1, laps=2, cap=2)
    images = [
        sum(task.module == "vision" and task.microbatch == number for task in problem.tasks) for number in range(12)
    ]
    assert len(set(images)) > 2
    use: dict[tuple[int, int], float] = {}
    for task in problem.tasks:
        key = (task.microbatch, task.rank)
        use[key] = use.get(key, 0.0) + task.acquire
    assert problem.memory_capacity == (2 * max(use.values()),) * 4


def test_curves_are_drawn_for_every_method() -> None:
    picture = plot(
        {name: solve(SMALL["P3 v1 m6 cap 3"][0](), evaluations=300, method=name).curve for name in ("mcts", "random")}
    )
    root = ET.fromstring(picture)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"mcts", "random", "seconds", "evaluations"} <= set(texts)


def test_the_command_stores_what_it_measured(tmp_path: Path) -> None:
    arguments = ["--part", "small", "--part", "curves", "--seconds", "0.2", "--seeds", "1", "--fresh", "1"]
    result = CliRunner().invoke(command, [*arguments, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0
    document = json.loads((tmp_path / "schedule.json").read_text())
    assert json.loads(result.output) == document
    assert {"processor", "cores", "date"} <= set(document["machine"])
    assert len(document["small"]) == len(SMALL) + 1
    assert all(row["median gap"] >= -1e-9 for row in document["small"])
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")


def test_the_tables_can_be_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--part", "small", "--seconds", "0.1", "--seeds", "1", "--fresh", "0"])
    assert result.exit_code == 0
    assert "small" in result.output


def test_short_searches_are_measured_without_and_with_the_last_order() -> None:
    rows = [*itertools.islice(short(batches=2), 4)]
    assert [(row["budget ms"], row["last order"]) for row in rows] == [
        (20.0, "-"), (20.0, "carried over"), (50.0, "-"), (50.0, "carried over"),
    ]  # fmt: skip
    assert all(row["median ms"] <= row["worst ms"] for row in rows)


@pytest.mark.parametrize("name", list(SMALL))
def test_known_optima_are_above_their_bounds(name: str) -> None:
    make, optimum = SMALL[name]
    assert optimum is not None
    assert lower_bound(make())[0] <= optimum
