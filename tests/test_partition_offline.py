"""The offline step: what it writes, when it searches again, and how its files are checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds_dip.costs.roofline import Roofline
from ds_dip.files import FileError
from ds_dip.models.partition import Partition, model_hash
from ds_dip.models.spec import Sizes
from ds_dip.partition import read_partition
from ds_dip.partition.memory import Memory
from ds_dip.partition.offline import Inputs, partition_offline
from ds_dip.partition.report import nominal_sizes
from ds_dip.partition.show import candidates_table, layers
from ds_dip.partition.space import SearchOptions
from tests.partition_cases import PROCESSOR, QUICKSTART, digits, schedule

INPUTS = Inputs(QUICKSTART, 2, digits(), "0" * 64, options=SearchOptions(evaluations=20, shown=3))
COSTS = Roofline(QUICKSTART, PROCESSOR)


def make(path: Path, inputs: Inputs = INPUTS, **more: Any) -> tuple[Partition, bool]:
    return partition_offline(inputs, COSTS, schedule, None, path, **more)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Partition]:
    path = tmp_path_factory.mktemp("partition") / "p.json"
    return path, make(path)[0]


def document_of(written: tuple[Path, Partition]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(written[0].read_text())
    return document


def test_the_file_holds_the_partition_its_estimates_and_its_hashes(written: tuple[Path, Partition]) -> None:
    path, partition = written
    assert read_partition(path, QUICKSTART) == partition
    document = document_of(written)
    assert document["model_sha256"] == model_hash(QUICKSTART)
    assert (document["table_sha256"], document["inputs_sha256"]) == ("0" * 64, INPUTS.sha256)
    state = Memory().state(QUICKSTART, partition)
    assert [row["state_bytes"] for row in document["memory"]] == list(state)
    assert all(row["activation_bytes"] > 0 for row in document["memory"])
    sizes = nominal_sizes(QUICKSTART, partition, INPUTS.workload)
    for chunk in partition.chunks:
        row = document["modules"][chunk.module]["chunks"][chunk.index]
        where = (chunk.module, chunk.start, chunk.stop, sizes[chunk.module])
        assert (row["forward_seconds"], row["backward_seconds"]) == (COSTS.forward(*where), COSTS.backward(*where))
    search = document["search"]
    assert search["candidates"][0]["mean_s"] <= search["rule"]["mean_s"]
    assert (search["batches"], search["samples"], search["microbatches"]) == (2, 32, 4)


def test_the_same_inputs_are_not_searched_again(written: tuple[Path, Partition]) -> None:
    path, partition = written
    before = path.read_bytes()
    assert make(path) == (partition, True)
    assert make(path, again=True) == (partition, False)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": 3},
        {"workload": digits(batches=1)},
        {"costs_sha256": "1" * 64},
        {"schedule": "1f1b"},
        {"evaluations": 7},
        {"memory": Memory(bytes=1e9)},
        {"options": SearchOptions(evaluations=20, shown=3, laps={"vision": 1})},
        {"options": SearchOptions(evaluations=20, shown=3, parts={"vision": (3, 3)})},
    ],
)
def test_other_inputs_are_searched_again(tmp_path: Path, change: dict[str, Any]) -> None:
    make(tmp_path / "p.json")
    other = replace(INPUTS, **change)
    assert other.sha256 != INPUTS.sha256
    assert make(tmp_path / "p.json", other)[1] is False


def test_a_file_changed_by_hand_is_searched_again(written: tuple[Path, Partition], tmp_path: Path) -> None:
    document = document_of(written)
    document["modules"]["vision"]["sub_microbatch"] = 3
    (tmp_path / "p.json").write_text(json.dumps(document))
    assert make(tmp_path / "p.json") == (written[1], False)


def test_a_file_of_another_kind_is_replaced(written: tuple[Path, Partition], tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")
    assert make(tmp_path / "p.json") == (written[1], False)


def test_estimates_are_for_b_mean_instances_or_a_mean_microbatch(written: tuple[Path, Partition]) -> None:
    limits = tuple((name, 2 if name == "vision" else None) for name, _ in written[1].sub_microbatch)
    sizes = nominal_sizes(QUICKSTART, replace(written[1], sub_microbatch=limits), INPUTS.workload)
    assert sizes["vision"] == Sizes((16, 16), (1, 1))
    assert len(sizes["language"]) == 4


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("table_sha256", "short", "field 'table_sha256' is 'short', expected 64 hexadecimal"),
        ("memory", [], r"field 'memory' is \[\], expected a list with one object for each of 2 ranks"),
        ("memory.0.state_bytes", -1, r"field 'memory\[0\].state_bytes' is -1"),
        ("memory.1.bytes", 1, r"memory\[1\] has the unknown field 'bytes'"),
        ("search", 3, "field 'search' is 3, expected an object"),
        ("search.seed", 3, "search has the unknown field 'seed'"),
        ("search.tried", "many", "field 'search.tried' is 'many'"),
        ("search.rule_refusal", None, "field 'search.rule_refusal' is None"),
        ("search.candidates", [], r"field 'search.candidates' is \[\], expected a list of at least one"),
        ("search.rule.mean_s", None, "field 'search.rule.mean_s' is None"),
        ("search.rule.bubble", "5 %", "field 'search.rule.bubble' is '5 %'"),
        ("search.rule.split", 1, "field 'search.rule.split' is 1"),
        (
            "search.candidates.0.state_bytes",
            [1],
            r"candidates\[0\].state_bytes' is \[1\], expected a list of 2 numbers",
        ),
        ("search.candidates.0.makespans_s", [True], r"candidates\[0\].makespans_s\[0\]' is True"),
        ("search.candidates.0.modules", {}, r"candidates\[0\].modules' is \{\}"),
        ("search.candidates.0.modules.vision.laps", 0, r"modules.vision.laps' is 0"),
        ("search.candidates.0.modules.vision.sub_microbatch", "x", r"modules.vision.sub_microbatch' is 'x'"),
        ("search.candidates.0.modules.vision.parts", [0], r"modules.vision.parts' is \[0\]"),
        ("search.candidates.0.modules.vision.ranks", [2], r"modules.vision.ranks' is \[2\], expected a rank of 0 to 1"),
    ],
)
def test_a_wrong_field_of_the_search_is_refused_by_its_name(
    written: tuple[Path, Partition], tmp_path: Path, place: str, value: Any, message: str
) -> None:
    document = document_of(written)
    *keys, last = place.split(".")
    target: Any = document
    for key in keys:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[last] = value
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(FileError, match=f"p.json: .*{message}"):
        read_partition(tmp_path / "p.json", QUICKSTART)


def test_the_table_has_the_rule_and_every_candidate(written: tuple[Path, Partition]) -> None:
    document = document_of(written)
    table = candidates_table(document)
    assert [column.header for column in table.columns][:3] == ["", "vision", "language"]
    labels = [*table.columns[0].cells]
    assert labels == ["rule", *(str(number + 1) for number in range(len(document["search"]["candidates"])))]
    assert all(own.startswith("K=") and "B=" in own for own in [*table.columns[1].cells])
    document["search"]["rule"] = None
    assert [*candidates_table(document).columns[0].cells] == labels[1:]


@pytest.mark.parametrize(("parts", "text"), [([15, 16, 16, 16], "15 16x3"), ([3], "3"), (list(range(1, 30)), "1-29")])
def test_layers_are_told_in_short(parts: list[int], text: str) -> None:
    assert layers(parts) == text
