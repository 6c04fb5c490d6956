"""Where media may lie, and reading their bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from ds_dip.data.conversations.conversation import Media, RecordError, shown


@dataclass(frozen=True, slots=True)
class Places:
    """Turns the paths that records give into files.

    Relative paths are under ``root``. A path whose beginning is in ``prefixes`` has it replaced first. What lies
    outside the root, also by a symbolic link, is refused unless ``outside``.
    """

    root: Path
    prefixes: Mapping[str, str] = field(default_factory=dict)
    outside: bool = False

    def of(self, media: Media) -> Media:
        """The medium with its file; RecordError where the path is refused. What has its bytes stays as it is."""
        if media.content is not None or media.path is not None:
            return media
        source = media.source
        for prefix, instead in self.prefixes.items():
            if source.startswith(prefix):
                source = instead + source[len(prefix) :]
                break
        root = _real(str(self.root))
        folder, name = os.path.split(os.path.join(root, source))
        path = os.path.join(_real(folder), name)
        if not name or name == ".." or os.path.islink(path):
            path = os.path.realpath(path)
        if not self.outside and path != root and not path.startswith(root.rstrip("/") + "/"):
            raise RecordError(
                f"names the {media.kind} {shown(media.source)}, which lies outside {self.root}; set root, or outside "
                "to true where that is meant"
            )
        return replace(media, path=path)


@lru_cache(maxsize=4096)
def _real(folder: str) -> str:
    """Where a folder really is: media share folders, and looking at each part of a path takes long."""
    return os.path.realpath(folder)


def size_of(media: Media) -> int:
    """Bytes of a medium; OSError where its file is not there."""
    if media.content is not None:
        return len(media.content)
    assert media.path is not None
    return media.span[1] if media.span is not None else os.stat(media.path).st_size


def open_media(media: Media) -> BinaryIO:
    """A stream of the medium's bytes; OSError where its file is not there."""
    if media.content is not None:
        return io.BytesIO(media.content)
    assert media.path is not None
    if media.span is None:
        return open(media.path, "rb")
    with open(media.path, "rb") as stream:
        stream.seek(media.span[0])
        return io.BytesIO(stream.read(media.span[1]))
