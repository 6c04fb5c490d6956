"""Tars and Parquet files: samples with their media inside, found again by their place."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ds_dip.data import collate
from ds_dip.data.conversations import Conversations
from ds_dip.data.conversations.archives import ParquetSource, TarSource
from ds_dip.data.conversations.records import Problem, Record
from ds_dip.data.conversations.sources import source_of
from ds_dip.files import FileError
from tests.media_cases import asked, picture, tiny_model


def packed(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def png(folder: Path, side: int) -> bytes:
    return picture(folder / "x.png", side, side).read_bytes()


def shard(folder: Path) -> Path:
    """A record that lists its media, one that does not, a caption, and samples that are none."""
    small, large = png(folder, 28), png(folder, 56)
    return packed(
        folder / "shard.tar",
        {
            "a/000.json": json.dumps(asked("<image> or <image>?", images=["000.png", "000.two.png"])).encode(),
            "a/000.png": small,
            "a/000.two.png": large,
            "a/001.png": large,
            "a/001.json": json.dumps(asked()).encode(),
            "002.jpg": picture(folder / "y.jpg", 30, 40).read_bytes(),
            "002.txt": "a caption, é\n".encode(),
            "003.png": small,
            "004.json": b"nonsense",
            "005.txt": b"\xff",
            "006.json": json.dumps(asked("no media")).encode(),
        },
    )


def agree(dataset: Conversations) -> None:
    for index in range(len(dataset)):
        metadata = dataset.metadata(index)
        for module, fields in (("vision", ["pixels"]), ("language", ["tokens", "labels"])):
            if metadata.modules[module]:
                collate(dataset, [metadata], module, fields, 0, len(metadata.modules[module]))


def opened(folder: Path, path: Path, **options: Any) -> Conversations:
    return Conversations(
        files=str(path), processor={"model": tiny_model(folder)}, index=str(folder / "index"), **options
    )


def test_a_tar(tmp_path: Path) -> None:
    dataset = opened(tmp_path, shard(tmp_path), problems="skip")
    assert [dataset.metadata(index).modules["vision"] for index in range(4)] == [(4, 16), (16,), (4,), ()]
    agree(dataset)
    assert [str(problem).split("shard.tar: ")[1][:58] for problem in dataset.problems()] == [
        "sample 4: sample '003' has neither 003.json nor a caption",
        "sample 5: sample '004': is not JSON (Expecting value: line",
        "sample 6: sample '005': 'utf-8' codec can't decode byte 0x",
    ]
    tokens = dataset.load("shard-2", ["tokens"])["tokens"][0]
    assert bytes(tokens.astype("u1")).endswith("a caption, é\x03".encode())


def test_a_sample_of_a_tar_is_found_by_its_place(tmp_path: Path) -> None:
    source = TarSource(shard(tmp_path))
    for found in source.records():
        if isinstance(found, Record):
            assert source.record(found.place) == found.value
    with pytest.raises(FileError, match="make its index anew"):
        source.record(list(source.records())[3].place)


def test_a_tar_that_breaks_off(tmp_path: Path) -> None:
    path = shard(tmp_path)
    data = path.read_bytes()
    for length in range(0, len(data), 700):
        (tmp_path / "cut.tar").write_bytes(data[:length])
        found = list(TarSource(tmp_path / "cut.tar").records())
        assert sum(isinstance(one, Record) for one in found) <= 4
        for number, one in enumerate(found, start=1):
            assert one.place.line == number
    last = list(TarSource(packed(tmp_path / "b.tar", {"a.txt": b"x"})).records())[-1]
    assert isinstance(last, Record)
    (tmp_path / "cut.tar").write_bytes(data[:1800])
    last = list(TarSource(tmp_path / "cut.tar").records())[-1]
    assert isinstance(last, Problem)
    assert last.sentence.startswith("the tar breaks off")


def test_compressed_tars_and_unknown_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="unpack it to a .tar"):
        source_of(tmp_path / "a.tar.gz")
    with pytest.raises(FileError, match=r"expected .json, .jsonl, .parquet or .tar"):
        source_of(tmp_path / "a.csv")
    with pytest.raises(FileError, match="cannot be read"):
        list(TarSource(tmp_path / "a.tar").records())


def parquet(folder: Path, rows: list[dict[str, Any]], group: int = 2) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="install the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet", row_group_size=group)
    return folder / "rows.parquet"


def test_parquet(tmp_path: Path) -> None:
    content = {"bytes": png(tmp_path, 56), "path": "x.png"}
    rows = [
        asked(images=[content]),
        asked("no media"),
        asked("<image><image>", images=[{"bytes": None, "path": "x.png"}, content]),
        asked("<image>", images=None),
        asked("<image>", images=[{"bytes": b"junk", "path": None}]),
    ]
    dataset = opened(tmp_path, parquet(tmp_path, rows), problems="skip")
    assert [dataset.metadata(index).modules["vision"] for index in range(3)] == [(16,), (), (16, 16)]
    agree(dataset)
    assert [str(problem).split("rows.parquet: ")[1] for problem in dataset.problems()] == [
        "row 4: has 1 <image> in its text and lists 0 images; give each its place",
        "row 5: image bytes in the record is no image that Pillow knows",
    ]


def test_rows_are_found_again(tmp_path: Path) -> None:
    rows = [asked(str(number)) for number in range(5)]
    source = ParquetSource(parquet(tmp_path, rows))
    found = list(source.records())
    assert [one.value for one in found if isinstance(one, Record)] == rows
    assert [source.record(one.place) for one in reversed(found)] == rows[::-1]
    assert source.total() == 5


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="install the extra parquet")
    (tmp_path / "a.parquet").write_bytes(b"nonsense")
    with pytest.raises(FileError, match="is no Parquet file"):
        list(ParquetSource(tmp_path / "a.parquet").records())
