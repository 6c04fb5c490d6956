"""A sample's metadata: what planning needs, known without decoding the sample."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ds_dip.files import FileError, parse_object, read_text, write_atomic


@dataclass(frozen=True, slots=True)
class SampleMetadata:
    """Sizes of a sample's instances per module, in tokens as that module counts them.

    ``merged`` is what each instance becomes downstream (the same sizes where it is missing);
    ``loss_tokens`` the number of supervised tokens.
    """

    id: str
    modules: Mapping[str, tuple[int, ...]]
    loss_tokens: int
    merged: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class Dataset(Protocol):
    """Samples that tell their metadata without decoding and are loaded by id, field by field."""

    def __len__(self) -> int: ...

    def metadata(self, index: int) -> SampleMetadata:
        """Metadata of the sample at ``index``; cheap, no decoding."""
        ...

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """For each field, one array an instance of the module the field belongs to."""
        ...


FORMAT = "ds-dip/batch"
_WHAT = "one object a line"


def write_batch(path: str | Path, samples: Iterable[SampleMetadata]) -> None:
    """Write samples' metadata as ``ds-dip/batch`` 1 JSON Lines, atomically."""
    lines = [json.dumps({"format": FORMAT, "version": 1})]
    for sample in samples:
        document: dict[str, Any] = {"id": sample.id, "modules": {k: list(v) for k, v in sample.modules.items()}}
        if sample.merged:
            document["merged"] = {name: list(sizes) for name, sizes in sample.merged.items()}
        lines.append(json.dumps(document | {"loss_tokens": sample.loss_tokens}))
    write_atomic(path, "\n".join(lines) + "\n")


def read_batch(path: str | Path) -> tuple[SampleMetadata, ...]:
    """Read samples' metadata from a ``ds-dip/batch`` 1 file.

    Raises FileError, one sentence with the line, the field, the value found and what was expected.
    """
    # Not splitlines(), which also splits at characters that JSON allows in a string.
    lines = read_text(path, f"a {FORMAT} file").split("\n")
    header = parse_object(lines[0], f"{path}: line 1", _WHAT)
    for name, wanted in (("format", FORMAT), ("version", 1)):
        if header.get(name) != wanted:
            raise FileError(f"{path}: line 1: field {name!r} is {header.get(name)!r}, expected {wanted!r}")
    return tuple(
        _sample(f"{path}: line {number}", line) for number, line in enumerate(lines[1:], start=2) if line.strip()
    )


class BatchFile:
    """The samples of a ``ds-dip/batch`` 1 file as a dataset that can be planned, and not loaded."""

    def __init__(self, path: str) -> None:
        self._path, self._samples = path, read_batch(path)

    def __len__(self) -> int:
        return len(self._samples)

    def metadata(self, index: int) -> SampleMetadata:
        """Metadata of the sample at ``index``."""
        return self._samples[index]

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """Raises ValueError: the file holds sizes alone."""
        raise ValueError(
            f"{self._path} holds the sizes of sample {sample!r} and not its {', '.join(fields)}; name a dataset to "
            "train on"
        )


def _sample(where: str, line: str) -> SampleMetadata:
    document = parse_object(line, where, _WHAT)
    for name in document:
        if name not in ("id", "modules", "merged", "loss_tokens"):
            raise FileError(f"{where}: field {name!r} is unknown; use id, modules, merged and loss_tokens")
    id = document.get("id")
    if not isinstance(id, str):
        raise FileError(f"{where}: field 'id' is {id!r}, expected a string")
    modules = _sizes(where, "modules", document.get("modules"))
    merged = _sizes(where, "merged", document.get("merged", {}))
    for name, sizes in merged.items():
        if name not in modules or len(modules[name]) != len(sizes):
            raise FileError(
                f"{where}: field 'merged.{name}' has {len(sizes)} instances, expected the "
                f"{len(modules.get(name, ()))} of 'modules.{name}'"
            )
    loss_tokens = document.get("loss_tokens", sum(modules["language"]) if "language" in modules else None)
    if not isinstance(loss_tokens, int) or isinstance(loss_tokens, bool) or loss_tokens < 0:
        raise FileError(
            f"{where}: field 'loss_tokens' is {loss_tokens!r}, expected a whole number of at least 0 "
            "(it may be left out where there is a module 'language')"
        )
    return SampleMetadata(id, modules, loss_tokens, merged)


def _sizes(where: str, name: str, value: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, dict):
        raise FileError(f"{where}: field {name!r} is {value!r}, expected an object of module to list of sizes")
    for module, sizes in value.items():
        if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
            raise FileError(f"{where}: field '{name}.{module}' is {sizes!r}, expected a list of whole numbers above 0")
    return {module: tuple(sizes) for module, sizes in value.items()}
