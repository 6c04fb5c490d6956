"""Files of ours: written atomically, checked for format and version when read. Imports nothing of ours."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


class FileError(ValueError):
    """A file that cannot be used; the message says which, what is wrong and what to do."""


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Write a file so that readers see the old content or the new one, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: str | Path, document: Any) -> None:
    """Write a JSON document atomically; NaN and infinity are refused."""
    write_atomic(path, json.dumps(document, allow_nan=False) + "\n")


def read_json(path: str | Path, format: str, version: int = 1) -> dict[str, Any]:
    """Read a JSON document and check that it is ``format`` in this ``version``.

    Raises FileError where the file is missing, is no JSON object, or says another format or version.
    """
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}); give the path of a {format} file") from error
    except ValueError as error:
        raise FileError(f"{path}: is not JSON ({error}); expected a {format} file") from error
    if not isinstance(document, dict):
        raise FileError(f"{path}: holds a {type(document).__name__}, expected a JSON object of format {format}")
    for name, wanted in (("format", format), ("version", version)):
        if document.get(name) != wanted:
            raise FileError(f"{path}: field {name!r} is {document.get(name)!r}, expected {wanted!r}")
    return document
