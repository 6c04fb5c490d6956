"""``ds-dip/partition`` files: written and read back, and refused by field when they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.costs.roofline import Roofline
from ds_dip.files import FileError
from ds_dip.models.spec import Layer, Model, Module, Sizes, TensorSpec
from ds_dip.partition import make_partition, read_partition, write_partition

LAYER = Layer("mine", (TensorSpec(("tokens", 4)),))
MODEL = Model("m", (Module("vision", (LAYER,) * 6), Module("language", (LAYER,) * 9)), (("vision", "language"),))


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.none() | st.integers(1, 9))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, vision: int, language: int, size: int | None
) -> None:
    path = tmp_path_factory.mktemp("partition") / "partition.json"
    partition = make_partition(MODEL, ranks, {"vision": vision, "language": language}, {"vision": size})
    write_partition(path, MODEL, partition)
    assert read_partition(path, MODEL) == partition


def test_estimates_are_written_beside_the_chunks(tmp_path: Path) -> None:
    sizes = {name: Sizes((8,), (8,)) for name in ("vision", "language")}
    write_partition(tmp_path / "p.json", MODEL, make_partition(MODEL, 2), Roofline(MODEL), sizes)
    row = json.loads((tmp_path / "p.json").read_text())["modules"]["vision"]["chunks"][0]
    assert row["backward_seconds"] == pytest.approx(2 * row["forward_seconds"])
    assert row["activation_bytes"] > 0
    assert read_partition(tmp_path / "p.json", MODEL) == make_partition(MODEL, 2)


def test_parts_written_by_hand_are_read(tmp_path: Path) -> None:
    modules = {"vision": {"parts": [2, 4], "sub_microbatch": 3}, "language": {"parts": [3, 1, 1, 4]}}
    document = {"format": "ds-dip/partition", "version": 1, "ranks": 2, "modules": modules}
    (tmp_path / "p.json").write_text(json.dumps(document))
    expected = make_partition(MODEL, 2, None, {"vision": 3}, parts={"vision": [2, 4], "language": [3, 1, 1, 4]})
    assert read_partition(tmp_path / "p.json", MODEL) == expected


def wrong(change: dict[str, Any]) -> dict[str, Any]:
    modules = {
        "vision": {"parts": [2, 4]},
        "language": {"chunks": [{"rank": 0, "segment": 0, "start": 0, "stop": 9}]},
    }
    document = {"format": "ds-dip/partition", "version": 1, "ranks": 2, "modules": modules}
    for path, value in change.items():
        *keys, last = path.split(".")
        target: Any = document
        for key in keys:
            target = target[int(key)] if isinstance(target, list) else target[key]
        target[last] = value
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": "2"}, "field 'ranks' is '2', expected a whole number of at least 1"),
        ({"modules": []}, r"field 'modules' is \[\]"),
        ({"modules.vision": 3}, "field 'modules.vision' is 3"),
        ({"modules.vision.parts": [2, "x"]}, r"field 'modules.vision.parts' is \[2, 'x'\]"),
        ({"modules.vision.sub_microbatch": 0}, "field 'modules.vision.sub_microbatch' is 0"),
        ({"modules.language.chunks": None}, "field 'modules.language.chunks' is None"),
        ({"modules.language.chunks.0.stop": -1}, r"field 'modules.language.chunks\[0\].stop' is -1"),
        ({"modules.language.chunks.0.stop": 8}, "the chunks end at layer 8, the module has 9"),
        ({"modules.audio": {"parts": [1]}}, "chunks of vision, language, audio"),
        ({"model_sha256": "0"}, "field 'model_sha256' is '0'.*make the partition again"),
        ({"version": 2}, "field 'version' is 2"),
        ({"colour": 1}, "the file has the unknown field 'colour'; known are format, version"),
        ({"model": 3}, "field 'model' is 3"),
        ({"modules.vision.lap": 2}, "modules.vision has the unknown field 'lap'"),
        ({"modules.language.chunks.0.rnak": 1}, r"modules.language.chunks\[0\] has the unknown field 'rnak'"),
        ({"modules.language.chunks.0.forward_seconds": "x"}, r"chunks\[0\].forward_seconds' is 'x'"),
        ({"modules.vision.laps": "2"}, "field 'modules.vision.laps' is '2', expected a whole number"),
        ({"modules.vision.laps": 2}, "field 'modules.vision.laps' is 2, but its 2 chunks on 2 ranks are in 1"),
        ({"modules.language.laps": 3}, "field 'modules.language.laps' is 3, but its 1 chunks on 2 ranks are in 1"),
        ({"modules.vision.chunks": []}, "has 'parts' and 'chunks', which say the same"),
        ({"ranks": 3}, "the partition has 3 ranks and no chunk on rank 2: give every rank"),
        ({"ranks": 10**12}, "the partition has 1000000000000 ranks and no chunk on rank 2"),
        ({"modules.language.sub_microbatch": 2}, "sub_microbatch of language is 2, but it takes the outputs of vision"),
    ],
)
def test_a_wrong_field_is_refused_with_its_name_and_the_file(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    (tmp_path / "p.json").write_text(json.dumps(wrong(change)))
    with pytest.raises(FileError, match=f"p.json: .*{message}"):
        read_partition(tmp_path / "p.json", MODEL)
