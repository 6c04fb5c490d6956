"""``ds-dip/latency-table`` 1: what operators of some shapes cost on a device, measured or computed. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ds_dip.costs.names import is_known
from ds_dip.costs.operators import OPERATORS
from ds_dip.files import FileError, read_json, write_json
from ds_dip.models.spec import ELEMENT_BYTES

FORMAT = "ds-dip/latency-table"
MEASURED, ROOFLINE = "measured", "roofline"
SOURCES = (MEASURED, ROOFLINE)
_SECONDS = ("forward", "backward_input", "backward_weight")
_BYTES = ("kept_bytes", "peak_bytes")
#: More of anything than a shape says.
_MOST = 2**53


@dataclass(frozen=True, slots=True)
class Seconds:
    """The median of repeated measurements, and their spread (interquartile range); both 0 where there is nothing."""

    median: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One operator of one shape on one of ``tensor_parallel`` ranks (``shape`` is that rank's share).

    ``backward_input`` and ``backward_weight`` are the parts of a backward that give the gradients of inputs and of
    weights. ``kept_bytes`` stay from the forward to the backward; ``peak_bytes`` is the most that both hold at once,
    without weights and inputs. ``repeats`` were measured; ``note`` says why fewer than the standard error asks for.
    """

    name: str
    shape: Mapping[str, int]
    tensor_parallel: int = 1
    forward: Seconds = Seconds()
    backward_input: Seconds = Seconds()
    backward_weight: Seconds = Seconds()
    kept_bytes: float = 0.0
    peak_bytes: float = 0.0
    source: str = MEASURED
    repeats: int = 0
    note: str = ""

    @property
    def key(self) -> tuple[str, int, tuple[tuple[str, int], ...]]:
        """What names the row: a table holds no two of the same."""
        return self.name, self.tensor_parallel, tuple(sorted(self.shape.items()))


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Rows, and what they hold for.

    ``device`` names the device and ``dtype`` what it computed in; ``versions`` are the libraries', ``clock`` what
    timed it. ``ranks`` processes of ``threads`` threads ran at once. ``method`` says how it was measured, in words.
    ``slowdown`` (see docs/costs.md) holds, for ``MODULE/F`` and ``MODULE/B``, how much longer layers take inside the
    engine than by themselves, and for ``iteration`` a batch than its makespan. ``complete`` is false while rows are
    missing.
    """

    device: str
    dtype: str
    date: str = ""
    clock: str = ""
    method: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1
    threads: int = 1
    slowdown: Mapping[str, float] = field(default_factory=dict)
    complete: bool = True
    rows: tuple[Row, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_BYTES:
            raise ValueError(f"dtype is {self.dtype!r}, expected one of {', '.join(ELEMENT_BYTES)}")

    def named(self, name: str) -> tuple[Row, ...]:
        """The rows of one operator."""
        return tuple(row for row in self.rows if row.name == name)

    @property
    def gap(self) -> str:
        """A sentence that warns where rows are missing; empty where the table is complete."""
        if self.complete:
            return ""
        return (
            f"the latency table is not complete, {len(self.rows)} rows are measured: what it predicts may be far off; "
            "finish it by the ds-dip profile that began it"
        )

    def mismatch(self, device: str, threads: int | None = None) -> str:
        """A sentence that warns where this machine is another one than the table's; empty where it is the same."""
        if device != self.device:
            return (
                f"the latency table was made on {self.device}, and this is {device}: what it predicts may be far off; "
                "run ds-dip profile here"
            )
        if threads is not None and threads != self.threads:
            return (
                f"the latency table was made with {self.threads} threads a rank, and this rank has {threads}: "
                f"set OMP_NUM_THREADS={self.threads}, or run ds-dip profile here"
            )
        return ""


def write_table(path: str | Path, table: LatencyTable) -> None:
    """Write a table atomically."""
    write_json(path, {"format": FORMAT, "version": 1} | asdict(table) | {"rows": [_document(r) for r in table.rows]})


def _document(row: Row) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": row.name,
        "shape": dict(row.shape),
        "tensor_parallel": row.tensor_parallel,
    }
    for name in _SECONDS:
        seconds = getattr(row, name)
        document[name] = {"median": seconds.median, "spread": seconds.spread}
    document |= {"kept_bytes": row.kept_bytes, "peak_bytes": row.peak_bytes, "source": row.source}
    if row.repeats:
        document["repeats"] = row.repeats
    return document | ({"note": row.note} if row.note else {})


def read_table(path: str | Path) -> LatencyTable:
    """Read a table.

    Raises FileError, one sentence with the field, the value found and what was expected.
    """
    document = read_json(path, FORMAT)
    read = _Reader(str(path))
    read.known(
        "the header", document,
        ("format", "version", "device", "dtype", "date", "clock", "method", "versions", "ranks", "threads",
         "slowdown", "complete", "rows"),
    )  # fmt: skip
    versions = read.take(document, "versions", dict, "an object of names", {})
    slowdown = read.take(document, "slowdown", dict, "an object of numbers", {})
    rows = read.take(document, "rows", list, "a list of rows")
    dtype = read.take(document, "dtype", str, "a data type")
    if dtype not in ELEMENT_BYTES:
        raise read.wrong("dtype", dtype, f"one of {', '.join(ELEMENT_BYTES)}")
    if not rows:
        raise FileError(f"{path}: has no rows and tells no cost; make the table again by ds-dip profile --fresh")
    found = tuple(read.row(f"rows[{number}]", row) for number, row in enumerate(rows))
    seen: set[Any] = set()
    for number, row in enumerate(found):
        if row.key in seen:
            raise FileError(f"{path}: rows[{number}] says {row.name} of {dict(row.shape)} again; leave one of them out")
        seen.add(row.key)
    return LatencyTable(
        device=read.take(document, "device", str, "the device's name"),
        dtype=dtype,
        date=read.take(document, "date", str, "a date", ""),
        clock=read.take(document, "clock", str, "a clock's name", ""),
        method=read.take(document, "method", str, "a sentence", ""),
        versions={name: str(version) for name, version in versions.items()},
        ranks=read.whole("ranks", document.get("ranks", 1), 1),
        threads=read.whole("threads", document.get("threads", 1), 1),
        slowdown={name: read.number(f"slowdown.{name}", value) for name, value in slowdown.items()},
        complete=read.take(document, "complete", bool, "true or false", True),
        rows=found,
    )


class _Reader:
    """Fields of one file, each checked."""

    def __init__(self, path: str) -> None:
        self._path = path

    def wrong(self, place: str, value: object, expected: str) -> FileError:
        """The error for a field."""
        return FileError(f"{self._path}: field {place!r} is {repr(value)[:80]}, expected {expected}")

    def known(self, where: str, document: Mapping[str, Any], names: tuple[str, ...]) -> None:
        """Refuse fields of other names."""
        for name in document:
            if name not in names:
                raise FileError(f"{self._path}: {where} has the unknown field {name!r}; known are {', '.join(names)}")

    def take(self, document: Mapping[str, Any], name: str, kind: type, expected: str, default: Any = None) -> Any:
        """A field of one type."""
        value = document.get(name, default)
        if type(value) is not kind:
            raise self.wrong(name, value, expected)
        return value

    def whole(self, place: str, value: object, least: int) -> int:
        """A whole number."""
        if type(value) is not int or not least <= value <= _MOST:
            raise self.wrong(place, value, f"a whole number of at least {least}")
        return value

    def number(self, place: str, value: object) -> float:
        """A finite number of at least 0."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
            raise self.wrong(place, value, "a finite number of at least 0")
        return float(value)

    def row(self, where: str, row: object) -> Row:
        """One row."""
        if not isinstance(row, dict):
            raise self.wrong(where, row, "an object")
        self.known(where, row, ("name", "shape", "tensor_parallel", *_SECONDS, *_BYTES, "source", "repeats", "note"))
        shape, name, source = row.get("shape"), row.get("name"), row.get("source", MEASURED)
        if not isinstance(name, str) or not is_known(name):
            raise self.wrong(f"{where}.name", name, f"an operator's name: layer:KIND, {', '.join(OPERATORS)}")
        if not isinstance(shape, dict):
            raise self.wrong(f"{where}.shape", shape, "an object of whole numbers")
        if missing := [axis for axis in OPERATORS[name].axes if axis not in shape] if name in OPERATORS else []:
            raise self.wrong(f"{where}.shape", shape, f"{' and '.join(missing)} of {name}")
        if source not in SOURCES:
            raise self.wrong(f"{where}.source", source, f"one of {', '.join(SOURCES)}")
        return Row(
            name=name,
            shape={key: self.whole(f"{where}.shape.{key}", value, 0) for key, value in shape.items()},
            tensor_parallel=self.whole(f"{where}.tensor_parallel", row.get("tensor_parallel", 1), 1),
            forward=self._seconds(f"{where}.forward", row.get("forward")),
            backward_input=self._seconds(f"{where}.backward_input", row.get("backward_input")),
            backward_weight=self._seconds(f"{where}.backward_weight", row.get("backward_weight")),
            kept_bytes=self.number(f"{where}.kept_bytes", row.get("kept_bytes", 0)),
            peak_bytes=self.number(f"{where}.peak_bytes", row.get("peak_bytes", 0)),
            source=source,
            repeats=self.whole(f"{where}.repeats", row.get("repeats", 0), 0),
            note=str(row.get("note", "")),
        )

    def _seconds(self, place: str, value: object) -> Seconds:
        if not isinstance(value, dict) or not set(value) <= {"median", "spread"}:
            raise self.wrong(place, value, "an object with median and spread")
        return Seconds(
            self.number(f"{place}.median", value.get("median")), self.number(f"{place}.spread", value.get("spread", 0))
        )
