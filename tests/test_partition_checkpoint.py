"""What a checkpoint says of itself: read with care, complete or refused, and compared before anything is loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ds_dip.models.partition import Chunk, Partition, partition_hash
from ds_dip.partition import checkpoint
from ds_dip.partition.checkpoint import CheckpointError, check_contents, check_files, read_manifest, refusal, resolve

PARTITION = Partition(
    2,
    (Chunk("vision", 0, 0, 0, 0, 3), Chunk("vision", 1, 0, 1, 3, 5), Chunk("language", 0, 0, 0, 0, 1),
     Chunk("language", 1, 0, 1, 1, 2), Chunk("language", 2, 1, 0, 2, 4), Chunk("language", 3, 1, 1, 4, 6)),
    (("vision", 4), ("language", None)),
)  # fmt: skip


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "format": "ds-dip/checkpoint",
        "version": 1,
        "universal": False,
        "step": 3,
        "partition": checkpoint.partition_document(PARTITION),
        "partition_sha256": partition_hash(PARTITION),
        "model": "tiny",
        "model_sha256": "ab" * 32,
        "pipeline_ranks": 2,
        "replicas": 1,
        "optimizer": "DeepSpeedZeroOptimizer at ZeRO stage 1",
        "compute": "float32",
        "sampler": {"seed": 0, "batch_size": 8, "step": 3},
        "files": {"layer_00-model_states.pt": 5},
        "sha256": {"layer_00-model_states.pt": hashlib.sha256(b"12345").hexdigest()},
        **changes,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    here = tmp_path / "global_step3"
    here.mkdir()
    (here / "layer_00-model_states.pt").write_bytes(b"12345")
    (here / checkpoint.NAME).write_text(json.dumps(manifest()))
    return here


def test_a_complete_checkpoint_is_read(folder: Path) -> None:
    (folder.parent / "latest").write_text("global_step3\n")
    found = resolve(folder.parent, None)
    assert found == folder
    check_files(found, read_manifest(found))
    check_contents(found, read_manifest(found), read_manifest(found)["files"])


def test_content_that_changed_at_the_same_size_is_named(folder: Path) -> None:
    file = folder / "layer_00-model_states.pt"
    file.write_bytes(b"12346")
    check_files(folder, read_manifest(folder))
    with pytest.raises(
        CheckpointError, match=rf"^{file}: its content has the SHA-256 [0-9a-f]{{12}}…, and 5994471abb01… w"
    ):
        check_contents(folder, read_manifest(folder), [file.name])
    file.unlink()
    with pytest.raises(CheckpointError, match=r"layer_00-model_states.pt: cannot be read \(No such file"):
        check_contents(folder, read_manifest(folder), [file.name])


def test_without_a_newest_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert resolve(tmp_path, None) is None
    assert resolve(tmp_path, "a") == tmp_path / "a"


@pytest.mark.parametrize("text", ["", "../elsewhere", "a/b", "..", ".", "a\0b"])
def test_a_newest_checkpoint_that_is_no_name_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "latest").write_text(text)
    with pytest.raises(CheckpointError, match="expected the name of a checkpoint"):
        resolve(tmp_path, None)


def test_missing_and_truncated_files_are_named(folder: Path) -> None:
    file = folder / "layer_00-model_states.pt"
    file.write_bytes(b"123")
    with pytest.raises(CheckpointError, match=r"layer_00-model_states.pt: has 3 bytes and was written with 5"):
        check_files(folder, read_manifest(folder))
    file.unlink()
    file.mkdir()
    with pytest.raises(CheckpointError, match=r"layer_00-model_states.pt: is no regular file"):
        check_files(folder, read_manifest(folder))
    file.rmdir()
    with pytest.raises(CheckpointError, match=r"layer_00-model_states.pt: cannot be found .* incomplete"):
        check_files(folder, read_manifest(folder))


def test_a_folder_without_a_manifest_is_no_complete_checkpoint(folder: Path) -> None:
    (folder / checkpoint.NAME).unlink()
    with pytest.raises(CheckpointError, match="not a complete checkpoint of ds_dip"):
        read_manifest(folder)
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        read_manifest(folder / "elsewhere")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"step": "3"}, "field 'step' is '3', expected a int"),
        ({"files": None}, "field 'files' is None, expected a dict"),
        ({"version": 2}, "field 'version' is 2, expected 1"),
        ({"step": True}, "field 'step' is True, expected a int"),
        ({"step": -1}, "field 'step' is -1, expected a whole number of at least 0"),
        ({"replicas": -1}, "field 'replicas' is -1, expected a whole number from 1 to 65536"),
        ({"pipeline_ranks": 10**9}, "field 'pipeline_ranks' is 1000000000, expected a whole number from 1 to 65536"),
        ({"universal": True}, "field 'parameter_groups' is None"),
        ({"sampler": {"seed": "0"}}, "field 'sampler.seed' is '0'"),
        ({"files": {"../../etc/passwd": 5}}, "field 'files' is '../../etc/passwd', expected names of files in the"),
        ({"files": {"/etc/passwd": 5}}, "field 'files' is '/etc/passwd'"),
        ({"sha256": {}}, "field 'sha256.layer_00-model_states.pt' is None, expected 64 hexadecimal digits"),
        ({"sha256": {"layer_00-model_states.pt": "AB" * 32}}, "expected 64 hexadecimal digits"),
        ({"files": {"a": 1.5}}, "field 'files.a' is 1.5, expected a whole number"),
        ({"partition": {}}, "field 'partition.modules' is None"),
        ({"partition": {"modules": {"vision": 7}}}, "field 'partition.modules.vision' is 7, expected an object"),
        ({"partition": {"modules": {"vision": {"chunks": []}}}}, "field 'partition.modules.vision.laps' is None"),
        (
            {"partition": {"modules": {"v": {"laps": 1, "chunks": [3]}}}},
            r"field 'partition.modules.v.chunks\[0\]' is 3",
        ),
        (
            {"partition": {"modules": {"v": {"laps": 1, "chunks": [{"rank": 2}]}}}},
            r"field 'partition.modules.v.chunks\[0\].rank' is 2, expected a whole number from 0 to 1",
        ),
    ],
)
def test_wrong_fields_are_named(folder: Path, change: dict[str, Any], sentence: str) -> None:
    (folder / checkpoint.NAME).write_text(json.dumps(manifest(**change)))
    with pytest.raises(CheckpointError, match=sentence):
        read_manifest(folder)


def test_the_same_layout_loads_whatever_the_sub_microbatches_and_the_step() -> None:
    other = Partition(2, PARTITION.chunks, (("vision", 8), ("language", 1)))
    run = manifest(step=0, partition=checkpoint.partition_document(other), partition_sha256=partition_hash(other))
    assert refusal("runs/global_step3", manifest(), run, universal=False) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partition_sha256": "cd" * 32}, "partition cdcdcdcd"),
        ({"replicas": 2}, "P=2, 2 replicas"),
        ({"pipeline_ranks": 4}, "P=4, 1 replica;"),
        ({"optimizer": "FusedAdam at ZeRO stage 0"}, "FusedAdam at ZeRO stage 0, float32"),
        ({"compute": "bfloat16"}, "bfloat16"),
    ],
)
def test_another_layout_is_refused_with_both_named_and_the_way_out(change: dict[str, Any], words: str) -> None:
    sentence = refusal("runs/global_step3", manifest(), manifest(**change), universal=False)
    assert "\n" not in sentence
    assert words in sentence
    assert f"saved under partition {partition_hash(PARTITION)[:8]} (P=2, 1 replica; vision K=1 with 3+2" in sentence
    assert "language K=2 with 1+1+2+2 layers on ranks 0,1,0,1" in sentence
    assert "ds-dip checkpoint convert runs/global_step3 runs/global_step3_universal" in sentence
    assert '"checkpoint": {"load_universal": true}' in sentence


def test_a_universal_checkpoint_loads_under_any_layout_but_not_into_another_model() -> None:
    saved = manifest(universal=True)
    assert refusal("u", saved, manifest(replicas=8, pipeline_ranks=1, compute="bfloat16"), universal=True) == ""
    assert "this run trains 'other'" in refusal("u", saved, manifest(model="other", model_sha256="c"), universal=True)


def test_form_and_configuration_must_agree() -> None:
    sentence = refusal("runs/a", manifest(), manifest(), universal=True)
    assert sentence.startswith("runs/a: is not a universal checkpoint")
    assert "ds-dip checkpoint convert runs/a runs/a_universal" in sentence
    sentence = refusal("runs/a", manifest(universal=True), manifest(), universal=False)
    assert sentence == 'runs/a: is a universal checkpoint; set "checkpoint": {"load_universal": true} to load it'


def test_parameters_that_a_universal_checkpoint_lacks() -> None:
    saved = manifest(universal=True, files={"zero/3.weight/fp32.pt": 1, "zero/3.bias/step.pt": 1})
    assert checkpoint.missing_parameters(saved, ["3.weight", "3.bias", "4.weight"]) == ["3.bias", "4.weight"]
