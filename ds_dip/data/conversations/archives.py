"""WebDataset's tars and Parquet files: records with their media inside the file."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from ds_dip.data.conversations.conversation import KINDS, Kind, Media, plural
from ds_dip.data.conversations.records import MOST_LINE, Place, Problem, Record
from ds_dip.files import FileError, first_line, parse_object

#: Kinds of a tar's members by the end of their names.
_ENDS: Mapping[str, Kind] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm"), "image"),
    **dict.fromkeys(("mp4", "avi", "mkv", "webm", "mov", "m4v"), "video"),
    **dict.fromkeys(("wav", "mp3", "flac", "ogg", "m4a", "opus"), "audio"),
}
#: Members that hold a caption, which is the answer to the sample's media.
_CAPTIONS = ("txt", "caption", "text")
_WHAT = "a record of a tar's sample"


@dataclass(frozen=True, slots=True)
class TarSource:
    """Samples of a WebDataset tar: members whose names are alike up to the first dot, one after another.

    A sample is a record in ``KEY.json``, or a caption in ``KEY.txt``; media are its other members, and what a record
    lists by name. A tar that is compressed cannot be read from its middle and is refused.
    """

    path: Path

    def records(self) -> Iterator[Record | Problem]:
        """See Source."""
        return self._samples(0, None)

    def record(self, place: Place) -> Mapping[str, Any]:
        """See Source."""
        for found in self._samples(place.offset, place.offset + place.length):
            if isinstance(found, Record):
                return found.value
            raise FileError(f"{self.path}: {found.sentence}; make its index anew")
        raise FileError(f"{self.path}: has no sample at byte {place.offset}; make its index anew")

    def total(self) -> int:
        """See Source."""
        return self.path.stat().st_size

    def _samples(self, start: int, stop: int | None) -> Iterator[Record | Problem]:
        for number, (key, members, broken) in enumerate(_groups(self.path, start, stop), start=1):
            offset = members[0].offset if members else start
            end = members[-1].offset_data + members[-1].size if members else offset
            place = Place(number, offset, end - offset)
            yield Problem(place, broken) if broken else self._sample(place, key, members)

    def _sample(self, place: Place, key: str, members: list[tarfile.TarInfo]) -> Record | Problem:
        own: dict[str, tarfile.TarInfo] = {_end(member.name): member for member in members}
        if len(own) < len(members):
            return Problem(place, f"sample {key!r} has two members with one end of their names")
        media = {
            member.name: Media(kind, member.name, str(self.path), (member.offset_data, member.size))
            for end, member in own.items()
            if (kind := _ENDS.get(end.rpartition(".")[2]))
        }
        caption = next((own[end] for end in _CAPTIONS if end in own), None)
        try:
            if "json" in own:
                text = _text(self.path, own["json"])
                return Record(place, _named(parse_object(text, f"sample {key!r}", _WHAT), media))
            if caption is not None:
                places = "".join(f"<{medium.kind}>" for medium in media.values())
                record = {"query": places, "response": _text(self.path, caption).strip()}
                return Record(place, _named(record, media))
        except (FileError, UnicodeDecodeError) as error:
            return Problem(place, f"sample {key!r}: {first_line(error)}" if "sample" not in str(error) else str(error))
        return Problem(place, f"sample {key!r} has neither {key}.json nor a caption")


def _groups(path: Path, start: int, stop: int | None) -> Iterator[tuple[str, list[tarfile.TarInfo], str]]:
    """(key, members, what is wrong) of every sample; a file that breaks off ends with a sample that says so."""
    key, members = "", list[tarfile.TarInfo]()
    try:
        with open(path, "rb") as stream:
            stream.seek(start)
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                for member in archive:
                    if stop is not None and member.offset >= stop:
                        break
                    if not member.isfile():
                        continue
                    folder, name = str(PurePosixPath(member.name).parent), PurePosixPath(member.name).name
                    own = f"{folder}/{name.partition('.')[0]}".removeprefix("./")
                    if members and own != key:
                        yield key, members, ""
                        members = []
                    key = own
                    members.append(member)
                    archive.members = []  # type: ignore[attr-defined]  # it would remember every member
    except (tarfile.TarError, EOFError) as error:
        yield key, members, f"the tar breaks off ({first_line(error)})"
        return
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}); give a tar of samples") from error
    if members:
        yield key, members, ""


def _end(name: str) -> str:
    return PurePosixPath(name).name.partition(".")[2].lower()


def _text(path: Path, member: tarfile.TarInfo) -> str:
    if member.size > MOST_LINE:
        raise FileError(f"{member.name} has {member.size} bytes, allowed are {MOST_LINE}")
    with open(path, "rb") as stream:
        stream.seek(member.offset_data)
        return stream.read(member.size).decode("utf-8-sig")


def _named(record: Mapping[str, Any], media: Mapping[str, Media]) -> dict[str, Any]:
    """The record with its media instead of their names; those of a kind that it does not list follow in their order."""
    named = dict(record)
    by_name = {PurePosixPath(name).name: medium for name, medium in media.items()} | dict(media)
    by_name |= {_end(name): medium for name, medium in media.items()}
    for kind in KINDS:
        keys = [key for key in (kind, plural(kind)) if named.get(key) is not None]
        for key in keys:
            names = named[key] if isinstance(named[key], list) else [named[key]]
            named[key] = [by_name.get(name, name) if isinstance(name, str) else name for name in names]
        own = [medium for medium in media.values() if medium.kind == kind]
        if not keys and own and f"<{kind}>" in str(record):
            named[plural(kind)] = own
    return named


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """Rows of a Parquet file, whose media are paths or ``{"bytes": …, "path": …}``; a place's offset is the row."""

    path: Path

    def records(self) -> Iterator[Record | Problem]:
        """See Source."""
        file, number = _parquet(self.path, self.path.stat().st_mtime_ns), 0
        for group in range(file.num_row_groups):
            for row in _rows(self.path, self.path.stat().st_mtime_ns, group):
                yield Record(Place(number + 1, number, 1), row)
                number += 1
        if not number:
            yield Problem(Place(1, 0, 0), "the file has no rows in it")

    def record(self, place: Place) -> Mapping[str, Any]:
        """See Source."""
        changed, first = self.path.stat().st_mtime_ns, 0
        file = _parquet(self.path, changed)
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if place.offset < first + size:
                return _rows(self.path, changed, group)[place.offset - first]
            first += size
        raise FileError(f"{self.path}: has no row {place.line}; make its index anew")

    def total(self) -> int:
        """See Source."""
        return int(_parquet(self.path, self.path.stat().st_mtime_ns).metadata.num_rows)


@lru_cache(maxsize=16)
def _parquet(path: Path, _: int) -> Any:
    """The open file; the second argument, when it was changed, tells versions apart."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise FileError(f"{path}: needs pyarrow; install it with pip install 'ds_dip[parquet]'") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: is no Parquet file that can be read ({first_line(error)})") from error


@lru_cache(maxsize=2)
def _rows(path: Path, changed: int, group: int) -> list[dict[str, Any]]:
    """A row group's rows without their empty columns; ``changed`` tells versions of the file apart."""
    rows = _parquet(path, changed).read_row_group(group).to_pylist()
    return [_full(row) for row in rows]


def _full(value: Any) -> Any:
    """Without keys that have no value: a column has every key that any row has."""
    if isinstance(value, dict):
        return {key: _full(own) for key, own in value.items() if own is not None}
    return [_full(own) for own in value] if isinstance(value, list) else value
