"""Devices: every one that comes along can be read and says where its figures are from; wrong ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_dip.costs.devices import read_device
from ds_dip.files import FileError

FOLDER = Path(__file__).parent.parent / "profiling" / "devices"
FILES = sorted(FOLDER.glob("*.json"))


def test_the_papers_devices_are_there() -> None:
    assert {path.stem for path in FILES} >= {"h100", "h200", "h800", "h20", "a100"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_device_says_its_sources_and_gives_rates(path: Path) -> None:
    device = read_device(path)
    assert all(len(source) > 20 for source in device.sources)
    rates = device.rates("bfloat16")
    assert rates.flops == device.flops["bfloat16"] * device.efficiency["flops"]
    assert rates.compute == "bfloat16"
    assert device.rates("bfloat16", "network").link < rates.link


def changed(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(json.loads((FOLDER / "h100.json").read_text()) | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "field 'name' is '', expected the device's name"),
        ({"sources": []}, "field 'sources' is [], expected a list of sentences"),
        ({"flops": {"float8": 1}}, "field 'flops' is 'float8', expected data types"),
        ({"flops": {"float32": 0}}, "field 'flops.float32' is 0, expected a finite number above 0"),
        ({"links": {"node": {}}}, "field 'links' is ['node'], expected node and network"),
        (
            {"efficiency": {"flops": 1.2, "memory": 1, "link": 1}},
            "'efficiency.flops' is 1.2, expected a share",
        ),
        ({"price": 1}, "the file has the unknown field 'price'"),
    ],
)
def test_a_wrong_device_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(FileError) as refused:
        read_device(changed(tmp_path, **changes))
    assert said in str(refused.value)


def test_a_data_type_or_link_that_it_has_not_is_refused() -> None:
    device = read_device(FOLDER / "h100.json")
    with pytest.raises(ValueError, match="has no rate for int8: it has float32, bfloat16, float16"):
        device.rates("int8")
    with pytest.raises(ValueError, match="link is 'wire': use one of node, network"):
        device.rates("float32", "wire")
