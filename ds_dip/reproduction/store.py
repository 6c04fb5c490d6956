"""What parts found, a file each: an interrupted run goes on with those of the same settings and code."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ds_dip.files import FileError, read_json, write_json
from ds_dip.reproduction.experiment import Result, Settings

FORMAT = "ds-dip/reproduction-part"
_PACKAGE = Path(__file__).resolve().parent.parent
#: Rooms that a paper's figures depend on, and of this one the modules that only show them.
_ROOMS = ("scheduling", "balancing", "models", "data", "costs", "planning", "partition", "planner", "reproduction")
_MORE = {"dip": (), "dflop": ("parallelism", "reproduction/dflop")}
_SHOWING = ("__main__", "charts", "comparison", "dip", "documents", "evaluation", "page", "report", "running", "store",
            "tables")  # fmt: skip
_ADAPTER = TypeAdapter(Result)


@cache
def code(paper: str = "dip") -> str:
    """A hash of the code that a paper's figures depend on."""
    found = hashlib.sha256()
    for room in (*_ROOMS, *_MORE[paper]):
        for path in sorted((_PACKAGE / room).glob("*.py")):
            if not room.startswith("reproduction") or path.stem not in _SHOWING:
                found.update(f"{room}/{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()


def digest(settings: Settings) -> str:
    """A hash of what a part's figures depend on: settings, the descriptions' contents, and the code."""
    found = hashlib.sha256(code(settings.paper).encode())
    found.update(json.dumps([settings.quick, asdict(settings.effort), settings.factor]).encode())
    for folder in (settings.models, settings.devices):
        for path in sorted(own for own in folder.glob("*.json") if own.is_file()):
            found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()


def path_of(folder: Path, key: str) -> Path:
    """The file of a part."""
    return folder / f"{key}.json"


def write_part(folder: Path, key: str, digest: str, result: Result) -> None:
    """Keep what a part found, atomically."""
    found = asdict(result)
    document = {"format": FORMAT, "version": 1, "key": key, "digest": digest, "seal": _seal(found), "result": found}
    write_json(path_of(folder, key), document)


def read_part(folder: Path, key: str, digest: str) -> Result | None:
    """What a part found; None where its file is missing, damaged, or of other settings or code."""
    # A pipe would be waited for.
    if not path_of(folder, key).is_file():
        return None
    try:
        document: dict[str, Any] = read_json(path_of(folder, key), FORMAT)
        if document.get("key") != key or document.get("digest") != digest:
            return None
        if document.get("seal") != _seal(document.get("result")):
            return None
        return _ADAPTER.validate_json(json.dumps(document.get("result")))
    except (FileError, ValidationError):
        return None


def _seal(result: Any) -> str:
    """A hash of what a part found, by which a file that was changed is told."""
    return hashlib.sha256(json.dumps(result).encode()).hexdigest()
