"""Measures records: form, media, sizes; in parallel, with what is known of media kept in a journal on disk."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.conversation import Conversation, Media, RecordError, brief
from ds_dip.data.conversations.forms import Reading, conversation_of
from ds_dip.data.conversations.headers import Facts, Limits, MediaError, facts_of
from ds_dip.data.conversations.places import Places
from ds_dip.data.conversations.processor import Processor
from ds_dip.data.conversations.records import Problem, Record

#: Records that a thread is handed at once, and how often that many are under way.
_TOGETHER, _WINDOW = 32, 32
#: Seconds after which a record whose media are read is given up on.
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Reader:
    """Takes records apart: the conversation, its media with their files, and their facts."""

    reading: Reading
    places: Places
    limits: Limits

    def conversation(self, record: object) -> Conversation:
        """The conversation with its media in place; RecordError."""
        conversation = conversation_of(record, self.reading)
        turns = (
            type(turn)(turn.role, tuple(self._placed(part) for part in turn.parts), turn.supervised)
            for turn in conversation.turns
        )
        return Conversation(tuple(turns))

    def _placed(self, part: str | Media) -> str | Media:
        return self.places.of(part) if isinstance(part, Media) else part


Key = tuple[str, str, int, int]


class MediaJournal:
    """Facts of media files by kind, path and span, valid while a file's size and time of change stay.

    Kept in ``media.jsonl`` of an index, a line a medium, appended as they become known: what a stopped run has found
    is there for the next one. A line that was cut off is left out.
    """

    def __init__(self, path: Path | None, limits: Limits, *, decoded: bool) -> None:
        self._path, self._limits, self._decoded = path, limits, decoded
        self._known: dict[Key, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._stream: IO[str] | None = None
        self._header = {"format": "ds-dip/media", "version": 2, "limits": asdict(limits), "decoded": decoded}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        lines = path.read_bytes().split(b"\n")
        if lines[0] != json.dumps(self._header).encode():
            path.unlink()
            return
        for line in lines[1:-1]:
            entry = json.loads(line)
            self._known[(entry["kind"], entry["path"], *entry["span"])] = entry

    def facts(self, media: Media) -> Facts:
        """A medium's facts, from the journal where it is as it was; MediaError."""
        if media.path is None:
            return self._look(media)
        size, mtime = _state(media.path)
        key = (media.kind, media.path, *(media.span or (0, -1)))
        entry = self._known.get(key)
        if entry is None or (entry["bytes"], entry["mtime_ns"]) != (size, mtime):
            entry = {"kind": media.kind, "path": media.path, "span": key[2:], "bytes": size, "mtime_ns": mtime}
            try:
                entry["facts"] = self._look(media).brief()
            except MediaError as error:
                entry["problem"] = str(error)
            with self._lock:
                self._known[key] = entry
                self._append(entry)
        if "problem" in entry:
            raise MediaError(entry["problem"])
        return Facts.of(entry["facts"])

    def _look(self, media: Media) -> Facts:
        facts = facts_of(media, self._limits)
        if self._decoded:
            check_decodes(media, facts)
        return facts

    def _append(self, entry: dict[str, Any]) -> None:
        if self._path is None:
            return
        if self._stream is None:
            self._stream = _open_journal(self._path, self._header)
        self._stream.write(json.dumps(entry) + "\n")

    def changed(self) -> bool:
        """Whether any file is not as it was when its facts were taken; none is opened."""
        files = {path: (entry["bytes"], entry["mtime_ns"]) for (_, path, *_), entry in self._known.items()}
        return any(_state(path) != known for path, known in files.items())

    def flush(self) -> None:
        """Write what is known out."""
        with self._lock:
            if self._stream is not None:
                self._stream.flush()

    def close(self) -> None:
        """Write what is known out and let go of the file."""
        with self._lock:
            if self._stream is not None:
                self._stream.close()
                self._stream = None


def _state(path: str) -> tuple[int, int]:
    """A file's size and time of change; -1 for both where it is not there."""
    try:
        stat = os.stat(path)
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _open_journal(path: Path, header: dict[str, Any]) -> IO[str]:
    """For appending; a last line that was cut off is ended."""
    new = not path.exists()
    if not new:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
    stream = open(path, "a", encoding="utf-8")  # noqa: SIM115  # held until the journal is closed
    if new:
        stream.write(json.dumps(header) + "\n")
    return stream


def check_decodes(media: Media, facts: Facts) -> None:
    """MediaError where a medium cannot be decoded to its end, or is not what its header says."""
    if media.kind == "image":
        decode.image(media, facts)
    elif media.kind == "video":
        decode.video(media, (facts.frames - 1,), facts)
    else:
        decode.audio(media, round(facts.rate), facts)


def measured(
    records: Iterable[Record | Problem], reader: Reader, journal: MediaJournal, processor: Processor, workers: int
) -> Generator[dict[str, Any], None, None]:
    """A row of the index for every record, in their order; ``workers`` threads read media and count tokens.

    Raises TimeoutError, one sentence with the record's line, where its media cannot be read within ``DEADLINE_S``.
    """
    pool, overdue = ThreadPoolExecutor(workers, thread_name_prefix="ds-dip-index"), False

    def measure(errand: _Errand) -> None:
        for record in errand.records:
            errand.rows.append(row_of(record, reader, journal, processor))
            errand.told.set()

    try:
        under_way: deque[tuple[_Errand, Future[None]]] = deque()
        for errand in _errands(records):
            under_way.append((errand, pool.submit(measure, errand)))
            if len(under_way) >= _WINDOW:
                yield from _rows(*under_way.popleft())
        while under_way:
            yield from _rows(*under_way.popleft())
    except TimeoutError:
        overdue = True
        raise
    finally:
        # A thread that is overdue may never come back.
        pool.shutdown(wait=not overdue, cancel_futures=True)


@dataclass
class _Errand:
    """Some records for a thread, since handing over each takes as long as reading a header; and what has come of it."""

    records: list[Record | Problem]
    rows: list[dict[str, Any]] = field(default_factory=list)
    told: threading.Event = field(default_factory=threading.Event)


def _errands(records: Iterable[Record | Problem]) -> Iterable[_Errand]:
    own = iter(records)
    while some := list(islice(own, _TOGETHER)):
        yield _Errand(some)


def _rows(errand: _Errand, future: Future[None]) -> list[dict[str, Any]]:
    """The errand's rows; TimeoutError where none comes for too long."""
    while not future.done():
        errand.told.clear()
        done = len(errand.rows)
        if not wait([future], DEADLINE_S).done and not errand.told.is_set():
            line = errand.records[done].place.line
            raise TimeoutError(
                f"record {line} was not read within {DEADLINE_S:g} s; is the storage of its media there?"
            )
    future.result()
    return errand.rows


def row_of(record: Record | Problem, reader: Reader, journal: MediaJournal, processor: Processor) -> dict[str, Any]:
    """What the index says of a record: its sizes, or what is wrong with it."""
    place = _shallow(record.place)
    if isinstance(record, Problem):
        return {"problem": record.sentence} | place
    try:
        conversation = reader.conversation(record.value)
        facts = facts_in(conversation, journal.facts)
        sizes = processor.measure(conversation, facts)
    except RecordError as error:
        return {"problem": str(error)} | place
    row: dict[str, Any] = place | _shallow(sizes)
    return row | {"media": [own.brief() for own in facts]}


def _shallow(value: Any) -> dict[str, Any]:
    """A value's fields; ``asdict`` copies all that is in them, which takes as long as reading a header."""
    return {name: getattr(value, name) for name in _names(value.__class__)}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(own.name for own in fields(kind))


def facts_in(conversation: Conversation, look: Callable[[Media], Facts]) -> list[Facts]:
    """Facts of all media; RecordError, which names the medium, for the first that has none."""
    found = []
    for media in conversation.media:
        try:
            found.append(look(media))
        except MediaError as error:
            raise RecordError(f"{media.kind} {brief(media.source)} {error}") from error
    return found
