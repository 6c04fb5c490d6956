"""Files of ours: written atomically, checked for format and version when read. Imports nothing of ours."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: The largest file that is read whole.
MOST_BYTES = 1 << 30
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


def check_writable(path: str | Path, reads: Iterable[Path | None] = ()) -> None:
    """Check that ``path`` can be written by ``write_atomic``, before work whose result it is to hold.

    Raises TargetError, naming ``path``, where its folder is missing or cannot be written, where it exists and is no
    regular file, or where it is one of those that are read.
    """
    folder = _target(path).parent
    if any(read is not None and _same(Path(path), read) for read in reads):
        raise TargetError(f"{path}: is read as well and would be replaced; name another file")
    if not folder.exists():
        raise TargetError(f"{path}: cannot be written, there is no folder {folder}; make it, or name another file")
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{Path(path).name[:64]}.")
    except OSError as error:
        raise TargetError(f"{path}: cannot be written ({error.strerror}); name another file") from error
    os.close(handle)
    os.unlink(temporary)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return False


def check_folder(folder: str | Path, names: Iterable[str], reads: Iterable[Path | None] = ()) -> None:
    """Make a folder where it is missing, and check that files of these names can be written in it.

    Raises TargetError, naming the folder where it cannot be made, and else as ``check_writable`` does.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise TargetError(f"{folder}: is no folder and none can be made ({why}); name another one") from error
    read = tuple(reads)
    for name in names:
        check_writable(Path(folder, name), read)


def write_atomic(path: str | Path, content: bytes | str, *, durable: bool = True) -> None:
    """Write a file so that readers see the old content or the new one, never a part.

    A ``durable`` one is on the disk afterwards; another may be lost with the machine. A symbolic link stays, what it
    names is written. Raises TargetError for what exists and is no regular file, OSError where the file cannot be
    written.
    """
    target = _target(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            # A full disk names no file, and who renames names the draft.
            error.filename, error.filename2 = str(path), None
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

    Raises FileError as ``read_object`` does, and where it says another format or version.
    """
    document = read_object(path, f"a {format} file")
    for name, wanted in (("format", format), ("version", version)):
        found = document.get(name)
        if type(found) is not type(wanted) or found != wanted:
            raise FileError(f"{path}: field {name!r} is {repr(found)[:80]}, expected {wanted!r}")
    return document


def read_object(path: str | Path, what: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """Read a file that holds one JSON object, ``what`` it is in words.

    Raises FileError as ``read_text`` and ``parse_object`` do.
    """
    return parse_object(read_text(path, what, most), str(path), what)


def read_text(path: str | Path, what: str, most: int = MOST_BYTES) -> str:
    """Read a UTF-8 file, ``what`` it is in words; a byte order mark is left out.

    Raises FileError where it cannot be read, is larger than ``most`` bytes, or is not UTF-8.
    """
    try:
        # A number is no path: open() would take it for a descriptor, and wait for what is typed.
        with open(os.fspath(path), "rb") as stream:
            data = stream.read(most + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise FileError(f"{path}: cannot be read ({why}); give the path of {what}") from error
    if len(data) > most:
        raise FileError(f"{path}: is larger than {most} bytes, which {what} is not; give the path of {what}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path}: is not UTF-8 text ({error.reason} at byte {error.start}); expected {what}, save it as UTF-8"
        ) from error


def parse_object(text: str, where: str, what: str) -> dict[str, Any]:
    """The JSON object that ``text`` holds; ``where`` it is from and ``what`` it is, in words.

    Raises FileError where it is no JSON object, gives a key twice, or holds a number that is not finite or an
    integer of more than 64 bits.
    """
    try:
        document = json.loads(
            text,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_constant,
            object_pairs_hook=_once,
        )
    except (OverflowError, KeyError) as error:
        raise FileError(f"{where}: holds {error.args[0]}") from error
    except RecursionError as error:
        raise FileError(f"{where}: is nested too deep for {what}; expected a JSON object") from error
    except ValueError as error:
        raise FileError(f"{where}: is not JSON ({error}); expected {what}") from error
    if not isinstance(document, dict):
        kind = "null" if document is None else f"a {type(document).__name__}"
        raise FileError(f"{where}: holds {kind}, expected a JSON object; give {what}")
    return document


def step_path(folder: str | Path, step: int, suffix: str) -> Path:
    """The file of a step in a folder that holds one a step."""
    return Path(folder, f"step-{step:06d}{suffix}")


def step_files(folder: str | Path, suffix: str) -> dict[int, Path]:
    """The files ``step-N`` with that suffix in a folder, by step, ascending; none where there is no such folder."""
    found = {}
    for path in Path(folder).glob(f"step-*{suffix}"):
        number = re.fullmatch(r"step-(\d+)" + re.escape(suffix), path.name)
        if number:
            found[int(number.group(1))] = path
    return dict(sorted(found.items()))


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type's name where it says nothing."""
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise KeyError(f"the key {_cut(repr(twice))} twice in one object, expected it once")
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
