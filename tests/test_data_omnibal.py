"""Real samples' sizes: what a record says is what planning gets, and records that mean nothing are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds_dip.costs.flops import model_flops
from ds_dip.data import DatasetReference
from ds_dip.data.omnibal import OmniBal
from ds_dip.data.tiles import AI2D
from ds_dip.files import FileError
from ds_dip.models import load_model
from ds_dip.partition.workload import draw
from ds_dip.planning.cut import sizes_of

FOLDER = Path(__file__).parent / "data" / "omnibal"


@pytest.mark.parametrize("name", ["ai2d", "docvqa"])
def test_a_record_is_tiles_and_tokens(name: str) -> None:
    records = json.loads((FOLDER / f"{name}.json").read_text())
    dataset = DatasetReference("ds_dip.data.omnibal:OmniBal", {"path": str(FOLDER / f"{name}.json")}).open()
    assert len(dataset) == len(records) == 150
    for index, record in enumerate(records):
        metadata = dataset.metadata(index)
        assert metadata.modules == {"vision": (1024,) * record["vit_num"], "language": (record["token_num"],)}
        assert metadata.merged["vision"] == (256,) * record["vit_num"]
        assert metadata.loss_tokens == record["token_num"] - 256 * record["vit_num"] > 0


def test_tiles_are_those_that_generators_draw_from() -> None:
    dataset = OmniBal(str(FOLDER / "ai2d.json"))
    assert {len(dataset.metadata(index).modules["vision"]) for index in range(150)} <= set(AI2D)


def test_a_model_is_planned_with_it() -> None:
    dataset = OmniBal(str(FOLDER / "docvqa.json"))
    (batch,) = draw(len(dataset), dataset.metadata, 16, 1)
    model = load_model(FOLDER.parents[2] / "model_configs" / "vlm_s.json")
    sizes = sizes_of(batch, model)
    assert sum(sizes["vision"].merged) < sum(sizes["language"].tokens)
    assert (model_flops(model, sizes) or 0) > 0


def test_there_is_nothing_to_train_on() -> None:
    with pytest.raises(ValueError, match=r"ai2d\.json holds sizes of samples without their images and texts"):
        OmniBal(str(FOLDER / "ai2d.json")).load("ai2d-0", ["pixels"])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "at least one record"),
        ("[3]", "record 0 is '3', expected an object"),
        ('[{"vit_num": 1, "token_num": 300}, {"vit_num": -1, "token_num": 3}]', "record 1: field 'vit_num' is -1"),
        ('[{"vit_num": 1}]', "record 0: field 'token_num' is None"),
        ('[{"vit_num": 2, "token_num": 512}]', "'token_num' is 512, expected more than the 512 tokens of 2 tiles"),
    ],
)
def test_records_that_mean_nothing_are_refused(tmp_path: Path, document: str, message: str) -> None:
    (tmp_path / "records.json").write_text(document)
    with pytest.raises(FileError, match=message):
        OmniBal(str(tmp_path / "records.json"))


def test_a_file_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"^[^ ]*none.json: cannot be read \(No such file or directory\)"):
        OmniBal(str(tmp_path / "none.json"))
