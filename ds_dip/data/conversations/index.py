"""The index on disk: what every record of a dataset's files is, told without opening its media.

A folder with a ``ds-dip/conversations`` file for each file of records, a row a record, and ``media.jsonl`` with the
facts of media. While it is made its rows are in a ``.part``, appended as they come, so that a run that was stopped goes
on from there; a finished file is renamed. One process makes it, others wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ds_dip.data.conversations.measuring import MediaJournal, Reader, measured
from ds_dip.data.conversations.processor import Processor
from ds_dip.data.conversations.sources import Identity, source_of
from ds_dip.files import FileError

FORMAT = "ds-dip/conversations"
#: Rows between two times that what is done is written out.
_FLUSH = 512
#: Seconds that a process waits for another one that makes the index.
WAIT_S = 3600.0
_POLL_S = 0.2
#: What is told of progress: the file, records done, and how much of how much of it is read.
Progress = Callable[[Path, int, int, int], None]


@dataclass(frozen=True)
class Maker:
    """All that an index is made with; ``described`` is what it depends on beside the files.

    ``processor`` gives the one that counts: it is asked for only where something is made.
    """

    reader: Reader
    processor: Callable[[], Processor]
    described: str
    decoded: bool
    check_media: bool
    workers: int


class Rows:
    """The rows of one finished file of an index, parsed as they are asked for."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as stream:
            self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        ends = np.flatnonzero(np.frombuffer(self._data, dtype=np.uint8) == ord("\n"))
        self._starts, self._ends = ends[:-1] + 1, ends[1:]
        # Of the rows alone: the line before them has the time of the file's change in it.
        self.digest = hashlib.sha256(memoryview(self._data)[ends[0] :]).hexdigest()

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._data[self._starts[row] : self._ends[row]])
        return found

    def problems(self) -> np.ndarray:
        """Numbers of the rows that are no samples, int64."""
        starts = np.array([match.start() + 1 for match in re.finditer(rb'\n\{"problem"', self._data)], dtype=np.int64)
        return np.searchsorted(self._starts, starts)


def open_rows(files: tuple[Path, ...], folder: Path, maker: Maker, progress: Progress | None = None) -> list[Rows]:
    """The rows of every file, from the index where that is fresh, made where it is not.

    Raises FileError where a file cannot be read at all, the folder cannot be written, or another process takes too
    long to make it.
    """
    paths = [folder / f"{number}-{file.stem}.jsonl" for number, file in enumerate(files)]
    headers = [_header(file, maker) for file in files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made ({error.strerror}); name a folder as index") from error
    with _alone(folder):
        journal = MediaJournal(folder / "media.jsonl", maker.reader.limits, decoded=maker.decoded)
        try:
            changed = maker.check_media and journal.changed()
            for file, path, header in zip(files, paths, headers, strict=True):
                if changed or not _fresh(path, file, header):
                    _make(file, path, header, maker, journal, progress, anew=changed)
        finally:
            journal.close()
        return [Rows(path) for path in paths]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which goes with the process whatever ends it."""
    deadline = time.monotonic() + WAIT_S
    try:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise FileError(f"{folder}: cannot be written ({error.strerror}); name a folder as index") from error
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise FileError(
                        f"{folder}: another process has made this index for {WAIT_S:.0f} s; make it first, with "
                        "ds-dip data inspect"
                    ) from error
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def _header(file: Path, maker: Maker) -> dict[str, Any]:
    return {"format": FORMAT, "version": 2, "file": str(file), "made_with": maker.described}


def _fresh(path: Path, file: Path, header: Mapping[str, Any]) -> bool:
    """Whether a finished file of the index is of this file's content and made with the same."""
    try:
        with open(path, "rb") as stream:
            found = json.loads(stream.readline())
        identity = Identity(**found.pop("content"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return found == header and identity.holds(file)


def _make(
    file: Path,
    path: Path,
    header: dict[str, Any],
    maker: Maker,
    journal: MediaJournal,
    progress: Progress | None,
    *,
    anew: bool,
) -> None:
    """Make one file of the index, from where a run before this one was stopped."""
    whole = header | {"content": asdict(Identity.of(file))}
    part = path.with_suffix(".part")
    first = json.dumps(whole) + "\n"
    done = 0 if anew else _done(part, first)
    source = source_of(file)
    size = source.total()
    with open(part, "ab" if done else "wb") as stream:
        if not done:
            stream.write(first.encode())
            done = 1
        records = islice(source.records(), done - 1, None)
        try:
            with closing(measured(records, maker.reader, journal, maker.processor(), maker.workers)) as rows:
                for number, row in enumerate(rows, start=done):
                    stream.write(json.dumps(row).encode() + b"\n")
                    if number % _FLUSH == 0:
                        journal.flush()
                        stream.flush()
                    if progress is not None:
                        progress(file, number, row["offset"] + row["length"], size)
        except TimeoutError as error:
            raise FileError(f"{file}: {error}") from error
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, path)


def _done(part: Path, first: str) -> int:
    """Whole lines of a ``.part`` of the same content, its first one included; what follows them is cut off."""
    try:
        data = part.read_bytes()
    except OSError:
        return 0
    if not data.startswith(first.encode()):
        return 0
    os.truncate(part, data.rfind(b"\n") + 1)
    return data.count(b"\n")
