"""``ds-dip/checkpoint`` 1: what a checkpoint's folder holds, for which partition, and whether all of it is there."""

from __future__ import annotations

import hashlib
import math
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ds_dip.files import FileError, read_json
from ds_dip.models.partition import Partition

FORMAT = "ds-dip/checkpoint"
#: The manifest's name in a checkpoint's folder.
NAME = "ds_dip_checkpoint.json"
#: The files next to the checkpoints that name the newest one, as DeepSpeed calls them.
LATEST, LATEST_UNIVERSAL = "latest", "latest_universal"
#: What must agree for DeepSpeed's own load: optimizer state is not keyed by layer, but by what these say.
LAYOUT = ("partition_sha256", "pipeline_ranks", "replicas", "optimizer", "compute")
#: More pipeline ranks or replicas than any run has.
MOST_RANKS = 65536
_FIELDS = {
    "universal": bool,
    "step": int,
    "partition": dict,
    "partition_sha256": str,
    "model": str,
    "model_sha256": str,
    "pipeline_ranks": int,
    "replicas": int,
    "optimizer": str,
    "compute": str,
    "sampler": dict,
    "files": dict,
    "sha256": dict,
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or used; one sentence, the same on every rank."""


def partition_document(partition: Partition) -> dict[str, Any]:
    """A partition as ``ds-dip/partition`` says it: ``ranks`` and per module its chunks."""
    limits = dict(partition.sub_microbatch)
    modules: dict[str, Any] = {}
    for chunk in partition.chunks:
        module = modules.setdefault(chunk.module, {"sub_microbatch": limits.get(chunk.module), "chunks": []})
        module["laps"] = chunk.segment + 1
        module["chunks"].append(
            {"rank": chunk.rank, "segment": chunk.segment, "start": chunk.start, "stop": chunk.stop}
        )
    return {"ranks": partition.ranks, "modules": modules}


def describe(manifest: Mapping[str, Any]) -> str:
    """Where everything of a checkpoint or a run lives, in words: short hash, laps, layers, ranks, optimizer."""
    modules = []
    for name, module in manifest["partition"]["modules"].items():
        chunks = module["chunks"]
        layers = "+".join(str(chunk["stop"] - chunk["start"]) for chunk in chunks)
        ranks = ",".join(str(chunk["rank"]) for chunk in chunks)
        modules.append(f"{name} K={module['laps']} with {layers} layers on ranks {ranks}")
    replicas = f"{manifest['replicas']} replica{'s' if manifest['replicas'] > 1 else ''}"
    return (
        f"partition {manifest['partition_sha256'][:8]} (P={manifest['pipeline_ranks']}, {replicas}; "
        f"{'; '.join(modules)}; {manifest['optimizer']}, {manifest['compute']})"
    )


def resolve(folder: str | Path, tag: str | None, latest: str = LATEST) -> Path | None:
    """The checkpoint's own folder: ``folder/tag``, or what the file ``latest`` in ``folder`` names.

    None where there is no tag and no such file. Raises CheckpointError where the file cannot be
    read or names nothing.
    """
    if tag is not None:
        return Path(folder, tag)
    path = Path(folder, latest)
    try:
        newest = path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); name a tag") from error
    if not is_inside(newest) or "/" in newest or newest == ".":
        raise CheckpointError(f"{path} holds {newest!r}, expected the name of a checkpoint; name a tag")
    return Path(folder, newest)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a checkpoint's folder; the files are not looked at (see ``check_files``).

    Raises CheckpointError where there is no checkpoint, where it is not one of ds_dip's, or where a
    field is wrong.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such checkpoint; give the folder it was saved in, and its tag")
    path = folder / NAME
    if not path.exists():
        raise CheckpointError(
            f"{folder}: has no {NAME}, so it is not a complete checkpoint of ds_dip; a stopped save leaves none, and "
            "DeepSpeed's own converter writes none (use ds-dip checkpoint convert)"
        )
    try:
        manifest = read_json(path, FORMAT)
    except FileError as error:
        raise CheckpointError(str(error)) from error
    for name, kind in _FIELDS.items():
        if type(manifest.get(name)) is not kind:
            raise _wrong(path, name, manifest.get(name), f"a {kind.__name__}")
    least = {"step": 0, "pipeline_ranks": 1, "replicas": 1}
    for name in [*least, *(["parameter_groups"] if manifest["universal"] else [])]:
        most = MOST_RANKS if name in ("pipeline_ranks", "replicas") else math.inf
        _whole(path, name, manifest.get(name), least.get(name, 0), most)
    for name in ("seed", "batch_size"):
        _whole(path, f"sampler.{name}", manifest["sampler"].get(name), 0)
    for name, size in manifest["files"].items():
        if not is_inside(name):
            raise _wrong(path, "files", name, "names of files in the checkpoint's folder")
        _whole(path, f"files.{name}", size, 0)
        digest = manifest["sha256"].get(name)
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise _wrong(path, f"sha256.{name}", digest, "64 hexadecimal digits")
    _check_partition(path, manifest["partition"], manifest["pipeline_ranks"])
    return manifest


def is_inside(name: str) -> bool:
    """Whether a relative name stays in its folder."""
    return bool(name) and not name.startswith("/") and "\0" not in name and ".." not in name.split("/")


def _check_partition(path: Path, partition: Mapping[str, Any], ranks: int) -> None:
    modules = partition.get("modules")
    if not isinstance(modules, dict):
        raise _wrong(path, "partition.modules", modules, "an object with a member a module")
    for name, module in modules.items():
        where = f"partition.modules.{name}"
        if not isinstance(module, dict) or not isinstance(module.get("chunks"), list):
            raise _wrong(path, where, module, "an object with a list of chunks")
        _whole(path, f"{where}.laps", module.get("laps"), 1)
        for number, chunk in enumerate(module["chunks"]):
            place = f"{where}.chunks[{number}]"
            if not isinstance(chunk, dict):
                raise _wrong(path, place, chunk, "an object")
            _whole(path, f"{place}.rank", chunk.get("rank"), 0, ranks - 1)
            for key in ("segment", "start", "stop"):
                _whole(path, f"{place}.{key}", chunk.get(key), 0)


def _whole(path: Path, name: str, value: object, least: int, most: float = math.inf) -> None:
    if type(value) is not int or not least <= value <= most:
        bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise _wrong(path, name, value, f"a whole number {bounds}")


def _wrong(path: Path, name: str, value: object, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: field {name!r} is {repr(value)[:80]}, expected {expected}; take another checkpoint"
    )


def check_files(folder: str | Path, manifest: Mapping[str, Any]) -> None:
    """Check that every file of the manifest is there in its size.

    Raises CheckpointError for the first that is missing or has another size.
    """
    for name, size in manifest["files"].items():
        path = Path(folder, name)
        try:
            found = path.stat()
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be found ({error.strerror}), so the checkpoint is incomplete; take another one"
            ) from error
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{path}: is no regular file, so the checkpoint is damaged; take another one")
        if found.st_size != size:
            raise CheckpointError(
                f"{path}: has {found.st_size} bytes and was written with {size}, so the checkpoint is damaged; "
                "take another one"
            )


def check_contents(folder: str | Path, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check the content of these of the manifest's files against its sums; reads them whole.

    Raises CheckpointError for the first that is another one than was written.
    """
    for name in names:
        path = Path(folder, name)
        try:
            found = sum_of(path)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror}); take another checkpoint") from error
        wanted = manifest["sha256"][name]
        if found != wanted:
            raise CheckpointError(
                f"{path}: its content has the SHA-256 {found[:12]}…, and {wanted[:12]}… was written, so it is damaged "
                "or of another checkpoint; take another one"
            )


def sum_of(path: str | Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def refusal(folder: str | Path, saved: Mapping[str, Any], run: Mapping[str, Any], *, universal: bool) -> str:
    """Why a checkpoint cannot be loaded into a run, in one sentence; empty where it can.

    ``saved`` is the checkpoint's manifest, ``run`` what the run would write itself, and
    ``universal`` whether its configuration says ``load_universal``.
    """
    folder = Path(folder)
    if saved["model_sha256"] != run["model_sha256"]:
        return (
            f"{folder}: was saved from model {saved['model']!r} ({saved['model_sha256'][:8]}), this run trains "
            f"{run['model']!r} ({run['model_sha256'][:8]}); load it into the model it is of"
        )
    if universal != saved["universal"]:
        if universal:
            return (
                f'{folder}: is not a universal checkpoint, and "checkpoint.load_universal" is true; run '
                f'{command(folder)} and load {folder.name}_universal, or set "checkpoint.load_universal" to false'
            )
        return f'{folder}: is a universal checkpoint; set "checkpoint": {{"load_universal": true}} to load it'
    if not universal and any(saved[key] != run[key] for key in LAYOUT):
        return (
            f"{folder}: was saved under {describe(saved)}, this run has {describe(run)}, and optimizer state cannot be "
            f'carried over as it is; run {command(folder)}, then load {folder.name}_universal with "checkpoint": '
            '{"load_universal": true}'
        )
    return ""


def command(folder: str | Path) -> str:
    """The conversion command for a checkpoint."""
    return f"ds-dip checkpoint convert {folder} {folder}_universal"


def missing_parameters(manifest: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those of a rank's trained parameters that a universal checkpoint does not hold."""
    return [name for name in names if f"zero/{name}/fp32.pt" not in manifest["files"]]
