"""``ds-dip/partition`` 1: a partition as a file that is checked against its model when read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_dip.costs.model import CostModel
from ds_dip.files import FileError, read_json, write_json
from ds_dip.models.partition import Chunk, Partition, PartitionError, check_partition, model_hash
from ds_dip.models.spec import Model, Sizes
from ds_dip.partition.report import check_record

FORMAT = "ds-dip/partition"
_RECORD = ("table_sha256", "inputs_sha256", "memory", "search")
_FILE = ("format", "version", "model", "model_sha256", "ranks", "modules", *_RECORD)
_MODULE = ("laps", "sub_microbatch", "chunks", "parts")
_ESTIMATES = ("forward_seconds", "backward_seconds", "activation_bytes")
_CHUNK = ("rank", "segment", "start", "stop")


def write_partition(
    path: str | Path,
    model: Model,
    partition: Partition,
    costs: CostModel | None = None,
    sizes: Mapping[str, Sizes] | None = None,
    record: Mapping[str, Any] | None = None,
) -> None:
    """Write a partition atomically, with the hash of the model it is for.

    With ``costs`` and ``sizes`` every chunk also tells its estimated seconds and bytes for these
    instances. ``record`` says how it was made (see ``report``). Raises PartitionError for a partition
    that is not one of the model.
    """
    check_partition(model, partition)
    limits, modules = dict(partition.sub_microbatch), {}
    for module in model.modules:
        rows = []
        for chunk in partition.of(module.name):
            row: dict[str, Any] = {key: getattr(chunk, key) for key in _CHUNK}
            if costs is not None and sizes is not None and module.name in sizes:
                where = (module.name, chunk.start, chunk.stop, sizes[module.name])
                row["forward_seconds"] = costs.forward(*where)
                row["backward_seconds"] = costs.backward(*where) if model.backward(module.name) else 0.0
                row["activation_bytes"] = costs.activation_bytes(*where)
            rows.append(row)
        laps = rows[-1]["segment"] + 1
        modules[module.name] = {"laps": laps, "sub_microbatch": limits[module.name], "chunks": rows}
    write_json(
        path,
        {
            "format": FORMAT,
            "version": 1,
            "model": model.name,
            "model_sha256": model_hash(model),
            "ranks": partition.ranks,
            "modules": modules,
            **(record or {}),
        },
    )


def read_partition(path: str | Path, model: Model) -> Partition:
    """Read a partition and check it against the model.

    A module may say ``"parts"`` (layers a chunk, along the chain, over the ranks in turn) in the
    place of ``"chunks"``. Raises FileError for a field that is wrong or another model's file.
    """
    document = read_json(path, FORMAT)
    wanted = model_hash(model)
    # A file written by hand for explicit parts has no hash; the layers are checked below all the same.
    if document.get("model_sha256") not in (None, wanted):
        raise FileError(
            f"{path}: field 'model_sha256' is {document['model_sha256']!r}, model {model.name!r} has {wanted!r}; "
            "make the partition again for this model"
        )
    _known(path, "the file", document, _FILE)
    if "model" in document and not isinstance(document["model"], str):
        raise FileError(f"{path}: field 'model' is {_short(document['model'])}, expected the model's name")
    ranks = _whole(path, document, "ranks", 1)
    check_record(path, document, ranks)
    modules = document.get("modules")
    if not isinstance(modules, dict):
        raise FileError(f"{path}: field 'modules' is {_short(modules)}, expected an object with a member a module")
    chunks: list[Chunk] = []
    limits: list[tuple[str, int | None]] = []
    for name, entry in modules.items():
        where = f"modules.{name}"
        if not isinstance(entry, dict):
            raise FileError(f"{path}: field {where!r} is {_short(entry)}, expected an object")
        _known(path, where, entry, _MODULE)
        if "parts" in entry and "chunks" in entry:
            raise FileError(f"{path}: field {where!r} has 'parts' and 'chunks', which say the same; leave one out")
        own = _parts(path, where, name, entry, ranks) if "parts" in entry else _chunks(path, where, name, entry)
        if "laps" in entry and own and _whole(path, entry, "laps", 1, where) != own[-1].segment + 1:
            raise FileError(
                f"{path}: field '{where}.laps' is {entry['laps']}, but its {len(own)} chunks on {ranks} ranks are in "
                f"{own[-1].segment + 1}; leave it out, or change the chunks"
            )
        chunks += own
        limit = entry.get("sub_microbatch")
        limits.append((name, None if limit is None else _whole(path, entry, "sub_microbatch", 1, where)))
    order = {module.name: position for position, module in enumerate(model.modules)}
    chunks.sort(key=lambda chunk: order.get(chunk.module, len(order)))
    limits.sort(key=lambda limit: order.get(limit[0], len(order)))
    partition = Partition(ranks, tuple(chunks), tuple(limits))
    try:
        check_partition(model, partition)
    except PartitionError as error:
        raise FileError(f"{path}: {error}") from error
    return partition


def _chunks(path: str | Path, where: str, name: str, entry: dict[str, Any]) -> list[Chunk]:
    rows = entry.get("chunks")
    if not isinstance(rows, list):
        raise FileError(
            f"{path}: field '{where}.chunks' is {_short(rows)}, expected a list of chunks (or give 'parts')"
        )
    chunks = []
    for index, row in enumerate(rows):
        place = f"{where}.chunks[{index}]"
        if not isinstance(row, dict):
            raise FileError(f"{path}: field {place!r} is {_short(row)}, expected an object")
        _known(path, place, row, (*_CHUNK, *_ESTIMATES))
        for key in _ESTIMATES:
            value = row.get(key, 0.0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise FileError(f"{path}: field '{place}.{key}' is {_short(value)}, expected a number of 0 or more")
        rank, segment, start, stop = (_whole(path, row, key, 0, place) for key in _CHUNK)
        chunks.append(Chunk(name, index, segment, rank, start, stop))
    return chunks


def _parts(path: str | Path, where: str, name: str, entry: dict[str, Any], ranks: int) -> list[Chunk]:
    parts = entry["parts"]
    if not isinstance(parts, list) or any(isinstance(p, bool) or not isinstance(p, int) for p in parts):
        raise FileError(f"{path}: field '{where}.parts' is {_short(parts)}, expected a list of layer counts")
    chunks, start = [], 0
    for index, size in enumerate(parts):
        chunks.append(Chunk(name, index, index // ranks, index % ranks, start, start + size))
        start += size
    return chunks


def _known(path: str | Path, where: str, entry: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in entry:
        if name not in names:
            raise FileError(f"{path}: {where} has the unknown field {name!r}; known are {', '.join(names)}")


def _whole(path: str | Path, entry: dict[str, Any], key: str, least: int, where: str = "") -> int:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        place = f"{where}.{key}" if where else key
        raise FileError(f"{path}: field {place!r} is {_short(value)}, expected a whole number of at least {least}")
    return value


def _short(value: object) -> str:
    return repr(value)[:80]
