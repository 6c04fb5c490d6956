"""Files of ours: written atomically, checked for format and version when read. Imports nothing of ours."""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

#: Integers of our files have at most these bits, and hence digits and a sign.
_BITS = 64
_DIGITS = 21


class FileError(ValueError):
    """A file that cannot be used; the message says which, what is wrong and what to do."""


class TargetError(FileError, OSError):
    """A path that nothing can be written to; an OSError too, for those who guard a write."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.strerror = sentence


def check_writable(path: str | Path) -> None:
    """Check that ``path`` can be written by ``write_atomic``, before work whose result it is to hold.

    Raises TargetError, naming ``path``, where its folder is missing or cannot be written, or where it
    exists and is no regular file.
    """
    folder = _target(path).parent
    if not folder.exists():
        raise TargetError(f"{path}: cannot be written, there is no folder {folder}; make it, or name another file")
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{Path(path).name[:64]}.")
    except OSError as error:
        raise TargetError(f"{path}: cannot be written ({error.strerror}); name another file") from error
    os.close(handle)
    os.unlink(temporary)


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Write a file so that readers see the old content or the new one, never a part.

    A symbolic link stays, what it names is written. Raises TargetError for what exists and is no
    regular file, OSError where the file cannot be written.
    """
    target = _target(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _target(path: str | Path) -> Path:
    """What a path names, through symbolic links: a regular file, or nothing yet."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise TargetError(f"{path}: cannot be written ({error}); name another file") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise TargetError(f"{path}: is {kind}, and would be replaced by one; name a file")
    return Path(os.path.realpath(path))


def write_json(path: str | Path, document: Any) -> None:
    """Write a JSON document atomically; NaN and infinity are refused."""
    write_atomic(path, json.dumps(document, allow_nan=False) + "\n")


def read_json(path: str | Path, format: str, version: int = 1) -> dict[str, Any]:
    """Read a JSON document and check that it is ``format`` in this ``version``.

    Raises FileError where the file is missing, is no JSON object, says another format or version, or
    holds a number that is not finite or an integer of more than 64 bits.
    """
    try:
        document = json.loads(
            Path(path).read_bytes(), parse_int=_integer, parse_float=_finite, parse_constant=_constant
        )
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}); give the path of a {format} file") from error
    except OverflowError as error:
        raise FileError(f"{path}: holds {error}") from error
    except RecursionError as error:
        raise FileError(f"{path}: is nested too deep for a {format} file; expected a JSON object") from error
    except ValueError as error:
        raise FileError(f"{path}: is not JSON ({error}); expected a {format} file") from error
    if not isinstance(document, dict):
        raise FileError(f"{path}: holds a {type(document).__name__}, expected a JSON object of format {format}")
    for name, wanted in (("format", format), ("version", version)):
        found = document.get(name)
        if type(found) is not type(wanted) or found != wanted:
            raise FileError(f"{path}: field {name!r} is {repr(found)[:80]}, expected {wanted!r}")
    return document


def _integer(text: str) -> int:
    # Python itself refuses to read integers of more than 4300 digits, in a sentence about its own settings.
    number = int(text) if len(text) <= _DIGITS else 2**_BITS
    if not -(2 ** (_BITS - 1)) <= number < 2**_BITS:
        raise OverflowError(f"the integer {_cut(text)}, expected at most {_BITS} bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise OverflowError(f"the number {_cut(text)}, expected a finite number")
    return number


def _constant(text: str) -> float:
    raise OverflowError(f"the number {text}, expected a finite number")


def _cut(text: str) -> str:
    return text if len(text) <= _DIGITS else f"{text[:_DIGITS]}… ({len(text)} characters)"
