"""Files: written whole or not at all, only where a file may be, and refused in one sentence when read."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from ds_dip.files import (
    FileError,
    TargetError,
    check_folder,
    check_writable,
    read_json,
    read_object,
    read_text,
    step_files,
    step_path,
    write_atomic,
    write_json,
)


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    write_atomic(tmp_path / "new" / "a", "1")
    write_atomic(tmp_path / "new" / "a", b"2")
    assert (tmp_path / "new" / "a").read_text() == "2"
    assert os.listdir(tmp_path / "new") == ["a"]


def test_a_symbolic_link_stays_and_what_it_names_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "file")
    for content in ("1", "2"):
        write_atomic(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "far" / "file").read_text() == content
    assert os.listdir(tmp_path / "far") == ["file"]


def test_only_regular_files_are_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, words in (
        (Path("/dev/full"), "is no regular file"),
        (tmp_path / "pipe", "is no regular file"),
        (tmp_path / "link", "is no regular file"),
        (tmp_path, "is a folder"),
        (tmp_path / "loop", "cannot be written"),
    ):
        for write in (check_writable, lambda path: write_atomic(path, "1")):
            with pytest.raises(TargetError, match=f"^{path}: {words}") as caught:
                write(path)
            assert "\n" not in str(caught.value)
    assert Path("/dev/full").is_char_device()
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_is_made_and_its_files_are_checked_before_the_work(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b", ["one", "two"])
    check_folder(tmp_path / "a" / "b", ["one", "two"])
    assert os.listdir(tmp_path / "a" / "b") == []
    (tmp_path / "a" / "b" / "two").mkdir()
    with pytest.raises(TargetError, match=r"b/two: is a folder"):
        check_folder(tmp_path / "a" / "b", ["one", "two"])
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(TargetError, match=f"^{path}: is no folder and none can be made .*; name another one$"):
            check_folder(path, [])


def test_a_target_is_checked_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "a")
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileError, match=f"^{tmp_path}/none/a: cannot be written, there is no folder {tmp_path}/none;"):
        check_writable(tmp_path / "none" / "a")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a", Path("/proc/a")):
        with pytest.raises(OSError, match=f"^{path}: cannot be written"):
            check_writable(path)


def test_a_target_is_none_of_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("a")
    for target in ("a", "link"):
        with pytest.raises(TargetError, match=f"^{tmp_path}/{target}: is read as well and would be replaced; name"):
            check_writable(tmp_path / target, (None, tmp_path / "none", tmp_path / "a"))
    check_writable(tmp_path / "b", (None, tmp_path / "none", tmp_path / "a"))


def test_a_document_is_read_back(tmp_path: Path) -> None:
    document = {"format": "f", "version": 1, "a": [2**64 - 1, -(2**63), 1.5e308, None]}
    write_json(tmp_path / "d.json", document)
    assert read_json(tmp_path / "d.json", "f") == document


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000 + "]" * 100_000, "is nested too deep for a f file"),
        ('{"format": "f", "a":' * 100_000 + "1" + "}" * 100_000, "is nested too deep for a f file"),
        ('{"format": "f", "version": true}', "field 'version' is True, expected 1"),
        ('{"format": "f", "version": 1.0}', "field 'version' is 1.0, expected 1"),
        ('{"format": "f", "version": 1, "a": 1' + "0" * 400 + "}", "the integer 100000000000000000000… (401 char"),
        ('{"format": "f", "version": 1, "a": -1' + "0" * 9000 + "}", "the integer -10000000000000000000… (9002"),
        ('{"format": "f", "version": 1, "a": 18446744073709551616}', "the integer 18446744073709551616, expected at"),
        ('{"format": "f", "version": 1, "a": 1e999}', "the number 1e999, expected a finite number"),
        ('{"format": "f", "version": 1, "a": NaN}', "the number NaN, expected a finite number"),
        ("[]", "holds a list, expected a JSON object; give a f file"),
        ("\xff", "is not UTF-8 text (invalid start byte at byte 0)"),
        ("\xef\xbb\xbf{", "is not JSON"),
        ('{"format": "f", "version": 1, "a": {"b": 1, "b": 2}}', "the key 'b' twice in one object, expected it once"),
    ],
)  # fmt: skip
def test_what_is_no_document_is_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FileError) as caught:
        read_json(path, "f")
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(b'\xef\xbb\xbf{"format": "f", "version": 1}')
    assert read_json(path, "f") == {"format": "f", "version": 1}


def test_what_cannot_be_read_or_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"{" + b" " * 100 + b"}")
    assert read_object(tmp_path / "large", "a small file", most=102) == {}
    for path, words in (
        (tmp_path, "cannot be read (Is a directory); give the path of a small file"),
        (tmp_path / "none", "cannot be read (No such file or directory); give"),
        (tmp_path / "large", "is larger than 101 bytes, which a small file is not; give"),
        (Path("/dev/zero"), "is larger than 101 bytes"),
    ):
        with pytest.raises(FileError, match=f"^{path}: {re.escape(words)}"):
            read_object(path, "a small file", most=101)


def test_files_of_steps_are_found_by_number(tmp_path: Path) -> None:
    for step in (1000000, 12, 3):
        write_atomic(step_path(tmp_path, step, ".json"), "")
    for other in ("step-1.json.gz", "step-.json", "step-x.json", "a-step-000001.json", "step-000004.jsonl"):
        (tmp_path / other).write_text("")
    found = step_files(tmp_path, ".json")
    assert list(found) == [3, 12, 1000000]
    assert found[12] == step_path(tmp_path, 12, ".json") == tmp_path / "step-000012.json"
    assert step_files(tmp_path / "nowhere", ".json") == {}


def test_a_disk_that_is_full_is_told_of_the_file_that_was_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "plan.json"
    target.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(target, "new")
    assert caught.value.filename == str(target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_number_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="os.PathLike"):
        read_text(0, "a file")  # type: ignore[arg-type]
