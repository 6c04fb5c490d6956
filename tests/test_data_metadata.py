import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data import DatasetReference
from ds_dip.data.metadata import SampleMetadata, read_batch, write_batch
from ds_dip.files import FileError

HEADER = '{"format": "ds-dip/batch", "version": 1}'
SIZES = st.lists(st.integers(1, 10**6), max_size=5).map(tuple)


@st.composite
def samples(draw):
    modules = draw(st.dictionaries(st.sampled_from(["vision", "audio", "language"]), SIZES, min_size=1))
    kept = draw(st.sets(st.sampled_from(sorted(modules))))
    merged = {name: tuple(size // 4 + 1 for size in modules[name]) for name in kept}
    return SampleMetadata(draw(st.text("abc-012", max_size=8)), modules, draw(st.integers(0, 10**6)), merged)


@settings(deadline=None, max_examples=40)
@given(batch=st.lists(samples(), max_size=6))
def test_a_batch_file_gives_back_what_was_written(batch, tmp_path_factory):
    path = tmp_path_factory.mktemp("batch") / "batch.jsonl"
    write_batch(path, batch)
    assert read_batch(path) == tuple(batch)


def test_the_documented_line_is_read(tmp_path):
    path = tmp_path / "batch.jsonl"
    path.write_text(
        HEADER + '\n{"id": "x", "modules": {"vision": [1024, 256], "audio": [], "language": [812]}, '
        '"merged": {"vision": [256, 64]}, "loss_tokens": 301}\n\n'
    )
    (sample,) = read_batch(path)
    assert sample.modules == {"vision": (1024, 256), "audio": (), "language": (812,)}
    assert sample.merged == {"vision": (256, 64)}
    assert sample.loss_tokens == 301


def test_loss_tokens_default_to_all_of_the_language(tmp_path):
    path = tmp_path / "batch.jsonl"
    path.write_text(HEADER + '\n{"id": "x", "modules": {"language": [8, 12]}}\n')
    assert read_batch(path)[0].loss_tokens == 20


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": 3}, ["line 2", "'id'", "3", "string"]),
        ({"modules": []}, ["'modules'", "[]", "object"]),
        ({"modules": {"vision": [0]}}, ["'modules.vision'", "[0]", "above 0"]),
        ({"modules": {"vision": [1.5]}}, ["'modules.vision'", "[1.5]"]),
        ({"modules": {"vision": [True]}}, ["'modules.vision'", "[True]"]),
        ({"merged": {"vision": [4, 4]}}, ["'merged.vision'", "2 instances", "the 1 of"]),
        ({"merged": {"audio": [4]}}, ["'merged.audio'", "the 0 of"]),
        ({"loss_tokens": -1}, ["'loss_tokens'", "-1"]),
        ({"loss_tokens": None}, ["'loss_tokens'", "None"]),
        ({"tokens": 3}, ["'tokens'", "unknown"]),
    ],
)
def test_a_wrong_field_is_refused_with_its_line_and_name(tmp_path, change, words):
    path = tmp_path / "batch.jsonl"
    document = {"id": "x", "modules": {"vision": [16], "language": [9]}} | change
    path.write_text(f"{HEADER}\n{json.dumps(document)}\n")
    with pytest.raises(FileError) as error:
        read_batch(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "line 1: is not JSON"),
        ("[]", "holds a list"),
        ('{"format": "ds-dip/plan", "version": 1}', "field 'format' is 'ds-dip/plan', expected 'ds-dip/batch'"),
        ('{"format": "ds-dip/batch", "version": 2}', "field 'version' is 2, expected 1"),
        (HEADER + "\nnothing", "line 2: is not JSON"),
        (HEADER + '\n{"id": "x", "modules": {"vision": [4]}}', "'loss_tokens' is None"),
        (HEADER + '\n{"id": "x", "id": "y", "modules": {}}', "line 2: holds the key 'id' twice"),
        (HEADER + '\n{"id": "x", "modules": {"language": [1e999]}}', "line 2: holds the number 1e999"),
    ],
)
def test_what_is_no_batch_file_is_refused(tmp_path, content, words):
    path = tmp_path / "batch.jsonl"
    path.write_text(content)
    with pytest.raises(FileError, match="batch.jsonl") as error:
        read_batch(path)
    assert words in str(error.value)


def test_a_missing_batch_file_is_said(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        read_batch(tmp_path / "none.jsonl")


def test_a_folder_and_other_encodings_are_refused_and_a_byte_order_mark_is_no_fault(tmp_path):
    path = tmp_path / "batch.jsonl"
    line = HEADER + '\n{"id": "a\u2028b", "modules": {"language": [4]}}\n'
    path.write_text(line, encoding="utf-8-sig")
    assert [sample.id for sample in read_batch(path)] == ["a\u2028b"]
    path.write_text(line, encoding="utf-16")
    with pytest.raises(FileError, match="batch.jsonl: is not UTF-8 text"):
        read_batch(path)
    with pytest.raises(FileError, match="cannot be read .Is a directory."):
        read_batch(tmp_path)


def test_a_batch_file_is_a_dataset_that_is_planned_and_not_loaded(tmp_path: Path) -> None:
    samples = [SampleMetadata("a", {"language": (3,)}, 2), SampleMetadata("b", {"language": (4, 1)}, 5)]
    write_batch(tmp_path / "batch.jsonl", samples)
    dataset = DatasetReference("ds_dip.data.metadata:BatchFile", {"path": str(tmp_path / "batch.jsonl")}).open()
    assert [dataset.metadata(index) for index in range(len(dataset))] == samples
    with pytest.raises(ValueError, match="holds the sizes of sample 'a' and not its tokens; name a dataset"):
        dataset.load("a", ["tokens"])
