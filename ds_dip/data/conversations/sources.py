"""The files of a dataset by their form: what reads all records of one, and one record again."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ds_dip.data.conversations.archives import ParquetSource, TarSource
from ds_dip.data.conversations.records import Place, Problem, Record, read_json, record_at
from ds_dip.files import FileError

#: Larger files are known by size and time of change alone.
_MOST_HASHED = 1 << 30
#: What a place's number counts, by the form of the file.
_COUNTED = {".tar": "sample", ".parquet": "row"}


class Source(Protocol):
    """One file of records."""

    def records(self) -> Iterator[Record | Problem]:
        """All records in their order; FileError where the file cannot be read at all."""
        ...

    def record(self, place: Place) -> Mapping[str, Any]:
        """One record again; FileError where it is not there any more."""
        ...

    def total(self) -> int:
        """What the last place's offset and length add up to, nearly: for progress."""
        ...


@dataclass(frozen=True, slots=True)
class JsonSource:
    """A JSON list or JSON Lines."""

    path: Path

    def records(self) -> Iterator[Record | Problem]:
        """See Source."""
        return read_json(self.path)

    def record(self, place: Place) -> Mapping[str, Any]:
        """See Source."""
        return record_at(self.path, place.offset, place.length)

    def total(self) -> int:
        """See Source."""
        return self.path.stat().st_size


def source_of(path: Path) -> Source:
    """What reads a file, by its name's end; FileError for what no form is known for."""
    end = path.suffix.lower()
    if end in (".json", ".jsonl", ".ndjson"):
        return JsonSource(path)
    if end == ".tar":
        return TarSource(path)
    if end == ".parquet":
        return ParquetSource(path)
    if ".tar" in path.name.lower():
        raise FileError(f"{path}: is a compressed tar, which cannot be read from its middle; unpack it to a .tar")
    raise FileError(f"{path}: is of no form that is read; expected .json, .jsonl, .parquet or .tar")


def where(path: Path, line: int) -> str:
    """A record's place in words."""
    return f"{path}: {_COUNTED.get(path.suffix.lower(), 'line')} {line}"


@dataclass(frozen=True, slots=True)
class Identity:
    """Which content a file has: its size, when it was changed, and a hash where it is not too large for one."""

    bytes: int
    mtime_ns: int
    sha256: str | None

    @classmethod
    def of(cls, path: Path) -> Identity:
        """A file's; FileError where it cannot be read."""
        try:
            found = os.stat(path)
            # A pipe, for one, would be waited for.
            if not stat.S_ISREG(found.st_mode):
                raise FileError(f"{path}: is no plain file; give a file of records")
            if found.st_size > _MOST_HASHED:
                return cls(found.st_size, found.st_mtime_ns, None)
            with open(path, "rb") as stream:
                digest = hashlib.file_digest(stream, "sha256") if hasattr(hashlib, "file_digest") else _digest(stream)
        except OSError as error:
            raise FileError(f"{path}: cannot be read ({error.strerror}); give a file of records") from error
        return cls(found.st_size, found.st_mtime_ns, digest.hexdigest())

    def holds(self, path: Path) -> bool:
        """Whether the file still has this content; the hash decides where only the time of change differs."""
        try:
            stat = os.stat(path)
        except OSError:
            return False
        if (stat.st_size, stat.st_mtime_ns) == (self.bytes, self.mtime_ns):
            return True
        if stat.st_size != self.bytes or self.sha256 is None:
            return False
        return Identity.of(path).sha256 == self.sha256


def _digest(stream: Any) -> Any:
    """As hashlib.file_digest(), which Python 3.10 lacks."""
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest
