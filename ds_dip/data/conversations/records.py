"""Files of records: JSON, JSON Lines, Parquet and WebDataset's tars, read record by record, each with its place.

What is wrong with one record is told as a ``Problem`` and does not end the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds_dip.files import MOST_BYTES, FileError, parse_object

#: The longest line that is read.
MOST_LINE = 1 << 26
_BOM = b"\xef\xbb\xbf"
_WHAT = "one record an object"
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is: ``line`` (or row, or member) counts from 1; ``offset`` and ``length`` are what reads it."""

    line: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is no record, and why."""

    place: Place
    sentence: str


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read, before its form is looked at."""

    place: Place
    value: Mapping[str, Any]


def read_json(path: Path) -> Iterator[Record | Problem]:
    """The records of a JSON list or of JSON Lines, told apart by the first character.

    A byte order mark is left out, lines may end in CRLF. Raises FileError where the file cannot be read at all.
    """
    try:
        with open(path, "rb") as stream:
            head = stream.read(4096)
            size = stream.seek(0, os.SEEK_END)
            if head.startswith((b"\xff\xfe", b"\xfe\xff")):
                yield Problem(Place(1, 0, size), "is UTF-16 text, expected UTF-8; save it as UTF-8")
                return
            if not head.strip():
                yield Problem(Place(1, 0, size), f"the file has nothing in it ({size} bytes), expected records")
                return
            start = len(_BOM) if head.startswith(_BOM) else 0
            if head[start:].lstrip().startswith(b"["):
                if size > MOST_BYTES:
                    sentence = f"a JSON list of more than {MOST_BYTES} bytes is not read; write it as JSON Lines"
                    yield Problem(Place(1, 0, size), sentence)
                    return
                stream.seek(start)
                yield from _list(stream.read(), start)
            else:
                yield from _lines(stream, start)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}); give a file of records") from error


def record_at(path: Path, offset: int, length: int) -> Mapping[str, Any]:
    """The record of a JSON list or of JSON Lines whose place is known; FileError where it is none (any more)."""
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            data = stream.read(length)
        return parse_object(data.decode("utf-8"), str(path), _WHAT)
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read at byte {offset} ({error}); make its index anew") from error


def _lines(stream: Any, start: int) -> Iterator[Record | Problem]:
    stream.seek(start)
    offset, number = start, 0
    while line := stream.readline(MOST_LINE):
        number += 1
        place = Place(number, offset, len(line))
        offset += len(line)
        if len(line) == MOST_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = stream.readline(MOST_LINE)
                offset += len(line)
            yield Problem(place, f"is longer than {MOST_LINE} bytes; cut the record")
            continue
        if not line.strip():
            continue
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            yield Problem(place, f"is not UTF-8 text ({error.reason} at byte {error.start} of the line)")
            continue
        yield _record(place, text)


def _list(data: bytes, start: int) -> Iterator[Record | Problem]:
    """The objects of a list. Bytes that are not UTF-8 spoil their own record only."""
    try:
        text, spoiled = data.decode("utf-8"), False
    except UnicodeDecodeError:
        text, spoiled = data.decode("utf-8", "surrogateescape"), True
    decoder = json.JSONDecoder()
    at = text.index("[") + 1
    line, counted, offset = 1, 0, start  # of the text up to ``counted``

    def placed(first: int, last: int) -> Place:
        nonlocal line, counted, offset
        line += text.count("\n", counted, first)
        offset += len(text[counted:first].encode("utf-8", "surrogateescape"))
        counted = first
        return Place(line, offset, len(text[first:last].encode("utf-8", "surrogateescape")))

    while True:
        at = _skip(text, at)
        if at >= len(text):
            yield Problem(placed(len(text), len(text)), "the list does not end; the file is cut off")
            return
        if text[at] == "]":
            break
        try:
            _, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            if isinstance(error, json.JSONDecodeError):
                at = max(at, min(error.pos, len(text)))
            yield Problem(placed(at, at), f"is not JSON ({why}); nothing after it can be read")
            return
        place = placed(at, end)
        if spoiled and any("\udc80" <= character <= "\udcff" for character in text[at:end]):
            yield Problem(place, "is not UTF-8 text")
        else:
            yield _record(place, text[at:end])
        at = _skip(text, end)
        if at < len(text) and text[at] == ",":
            at += 1
        elif at < len(text) and text[at] != "]":
            yield Problem(placed(at, at), f"has {text[at]!r} between records, expected a comma")
            return
    if rest := text[at + 1 :].strip():
        yield Problem(placed(at, at), f"has {rest[:20]!r} after the list; leave it out")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _record(place: Place, text: str) -> Record | Problem:
    try:
        return Record(place, parse_object(text, "it", _WHAT))
    except FileError as error:
        return Problem(place, str(error).removeprefix("it: "))
