"""A checkpoint's files on their way: recorded as they are written, named only when all are there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from ds_dip.files import first_line, write_atomic, write_json
from ds_dip.partition import checkpoint as manifests
from ds_dip.partition.checkpoint import LATEST, CheckpointError
from ds_dip.runtime.loading import data_only, refused_types

KEPT = "the checkpoints before it are untouched: make room or give another folder, and save again"


class RecordingEngine(CheckpointEngine):
    """DeepSpeed's checkpoint engine, which remembers files and sizes, and what could not be written.

    An error in the middle of DeepSpeed's save would leave the other ranks waiting in its next
    collective, so it is kept until all ranks can hear of it, and later files are left out.
    """

    def __init__(self, engine: Any) -> None:
        self.name, self._engine = engine.name, engine
        self._folder = Path()
        #: Bytes and SHA-256 of every file written.
        self.files: dict[str, tuple[int, str]] = {}
        self.problem = ""

    def begin(self, folder: Path) -> None:
        """Record a new checkpoint; names are relative to its folder."""
        self._folder, self.files, self.problem = folder, {}, ""

    def failed(self, path: str, error: BaseException) -> None:
        """Remember the first thing that went wrong."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        why = f"{cause.strerror}{_room(path)}" if isinstance(cause, OSError) else first_line(error)
        remedy = (
            KEPT if isinstance(cause, OSError) else "save what can be pickled; the checkpoints before are untouched"
        )
        self.problem = self.problem or f"rank {dist.get_rank()} could not write {path} ({why}); {remedy}"

    def save(self, state_dict: Any, path: str) -> None:
        """Write a file and have it on the disk."""
        if self.problem:
            return
        try:
            if isinstance(self._engine, TorchCheckpointEngine):
                # By way of a stream, since torch's own writer does not say what the system said.
                with open(path, "wb") as stream:
                    zipped = self._engine.zipfile_serialization
                    torch.save(state_dict, stream, _use_new_zipfile_serialization=zipped)
            else:
                self._engine.save(state_dict, path)
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())
            if held := refused_types(path):
                self.problem = f"rank {dist.get_rank()} has written {path}, which {held}"
                return
            self.files[os.path.relpath(path, self._folder)] = (os.path.getsize(path), manifests.sum_of(path))
        except Exception as error:  # noqa: BLE001  # whatever it is, the other ranks must hear of it, and then all raise
            self.failed(path, error)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder."""
        try:
            self._engine.makedirs(path, exist_ok=exist_ok)
        except OSError as error:
            self.failed(path, error)

    def load(self, path: str, map_location: Any = None) -> Any:
        """Read a file, which is data and runs nothing."""
        with data_only():
            return self._engine.load(path, map_location=map_location)

    def create(self, info: CheckpointCommitInfo) -> None:
        """Announce a save."""
        self._engine.create(info)

    def commit(self, info: CheckpointCommitInfo) -> Any:
        """Announce its end."""
        return self._engine.commit(info)

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        """Whether a replica's rank writes what all replicas share."""
        return bool(self._engine.is_data_parallel_writer(dp_rank))

    def preserves_storage_sharing(self) -> bool:
        """Whether views are written with the whole of what they are views of."""
        return bool(self._engine.preserves_storage_sharing())

    def cleanup(self) -> None:
        """End the engine."""
        self._engine.cleanup()


def _room(path: str) -> str:
    """What of a file is on its disk, and what is free there."""
    try:
        written = os.path.getsize(path) if os.path.exists(path) else 0
        return f" after {written} bytes, {shutil.disk_usage(Path(path).parent).free} bytes free"
    except OSError:
        return ""


def _replaced(final: Path) -> Path:
    """Where a checkpoint lies while another one takes its name."""
    return final.with_name(f".{final.name}.replaced")


def begin(draft: Path, final: Path) -> None:
    """Make the folder of a new draft; what a stopped save left of it goes."""
    if draft.exists():
        shutil.rmtree(draft)
    if final.exists() and _replaced(final).exists():
        shutil.rmtree(_replaced(final))
    draft.mkdir(parents=True)


def publish(draft: Path, final: Path, document: Mapping[str, Any], latest: bool) -> None:
    """Give a complete draft its name; an earlier checkpoint of that name goes when the new one is there."""
    write_json(draft / manifests.NAME, document)
    _sync(draft)
    if final.exists():
        final.rename(_replaced(final))
    draft.rename(final)
    _sync(final.parent)
    if latest:
        write_atomic(final.parent / LATEST, final.name)
    shutil.rmtree(_replaced(final), ignore_errors=True)


def recover(load_dir: str | Path, tag: str | None, latest: str) -> None:
    """Give a checkpoint its name back where a save was stopped while it replaced it."""
    try:
        final = manifests.resolve(load_dir, tag, latest)
    except CheckpointError:
        return
    if final is not None and not final.exists() and _replaced(final).exists():
        _replaced(final).rename(final)


def _sync(folder: Path) -> None:
    """Have a folder's entries on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
