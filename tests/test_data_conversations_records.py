"""Files of records: every record with its line and place, and what is broken spoils no more than it must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.data.conversations import records as module
from ds_dip.data.conversations.records import Problem, Record, read_json, record_at
from ds_dip.files import FileError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
RECORDS = st.lists(st.dictionaries(TEXT, TEXT, max_size=3), max_size=6)


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def told(path: Path) -> list[str | int]:
    """Of every record its line, of every problem its line and sentence."""
    return [f"{r.place.line}: {r.sentence}" if isinstance(r, Problem) else r.place.line for r in read_json(path)]


@settings(deadline=None)
@given(
    RECORDS,
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_a_record_is_found_again_by_its_place(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict[str, str]],
    indent: int | None,
    jsonl: bool,
    newline: str,
    marked: bool,
) -> None:
    path = tmp_path_factory.mktemp("records") / "records.json"
    if jsonl:
        content = "".join(json.dumps(record, ensure_ascii=False) + newline for record in records)
    else:
        content = json.dumps(records, indent=indent, ensure_ascii=False).replace("\n", newline)
    written(path, ("\ufeff" if marked else "") + content)
    found = list(read_json(path))
    if not records and jsonl:
        assert not any(isinstance(record, Record) for record in found)
        return
    assert [record.value for record in found if isinstance(record, Record)] == records
    for record in found:
        assert record_at(path, record.place.offset, record.place.length) == record.value
        before = path.read_bytes()[: record.place.offset]
        assert record.place.line == before.count(b"\n") + 1


def test_lines_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written(path, b'{"a": 1}\r\n\r\n{"b": \n[1]\n{"a": "\xff"}\n{"a": 1, "a": 2}\n{"c": 1}')
    assert told(path) == [
        1,
        "3: is not JSON (Expecting value: line 1 column 7 (char 6)); expected one record an object",
        "4: holds a list, expected a JSON object; give one record an object",
        "5: is not UTF-8 text (invalid start byte at byte 7 of the line)",
        "6: holds the key 'a' twice in one object, expected it once",
        7,
    ]


def test_bytes_that_are_no_text_spoil_one_record_of_a_list(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", b'[{"a": "\xc3\xa9"},\n{"a": "\xff"},\n\n{"a": 3}]')
    assert told(path) == [1, "2: is not UTF-8 text", 4]
    last = list(read_json(path))[-1]
    assert record_at(path, last.place.offset, last.place.length) == {"a": 3}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ["1: the file has nothing in it (0 bytes), expected records"]),
        (b" \n", ["1: the file has nothing in it (2 bytes), expected records"]),
        ("[1]".encode("utf-16"), ["1: is UTF-16 text, expected UTF-8; save it as UTF-8"]),
        (b'[{"a": 1},\n', [1, "2: the list does not end; the file is cut off"]),
        (b'[{"a": 1}\n{"a": 2}]', [1, "2: has '{' between records, expected a comma"]),
        (b'[{"a": 1},\n{"a": nonsense}]', [1, "2: is not JSON (Expecting value); nothing after it can be read"]),
        (b'[{"a": 1}]\n[2]', [1, "1: has '[2]' after the list; leave it out"]),
        (b"[[1]]", ["1: holds a list, expected a JSON object; give one record an object"]),
        (b"[]", []),
    ],
)
def test_files_that_are_broken(tmp_path: Path, content: bytes, expected: list[str | int]) -> None:
    assert told(written(tmp_path / "a.json", content)) == expected


def test_what_is_too_large_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINE", 16)
    path = written(tmp_path / "a.jsonl", '{"a": 1}\n' + '{"a": "' + 50 * "x" + '"}\n{"a": 2}\n')
    assert told(path) == [1, "2: is longer than 16 bytes; cut the record", 3]
    monkeypatch.setattr(module, "MOST_BYTES", 16)
    assert told(written(tmp_path / "a.json", '[{"a": 1}, {"a": 2}]')) == [
        "1: a JSON list of more than 16 bytes is not read; write it as JSON Lines"
    ]


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"a\.json: cannot be read"):
        list(read_json(tmp_path / "a.json"))
    with pytest.raises(FileError, match="make its index anew"):
        record_at(tmp_path / "a.json", 0, 1)
