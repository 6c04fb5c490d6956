"""A search's outcome as the part of a ``ds-dip/partition`` file that says how it was found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ds_dip.files import FileError
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model, Sizes
from ds_dip.partition.scoring import Score
from ds_dip.partition.search import Found
from ds_dip.partition.workload import Workload, typical

#: Fields of a rank's memory, of a candidate, and of the search as a whole; the reader knows no others.
MEMORY = ("state_bytes", "activation_bytes")
CANDIDATE = (
    "split", "modules", "mean_s", "makespans_s", "bound_gap", "bubble", "state_bytes", "activation_bytes",
)  # fmt: skip
SEARCH = (
    "batches", "samples", "microbatches", "replicas", "tried", "pruned", "unfit", "schedules", "rule",
    "rule_refusal", "candidates",
)  # fmt: skip


def search_document(found: Found, workload: Workload) -> dict[str, Any]:
    """What was searched and found: the rule and the best candidates with their predictions, fastest first."""
    return {
        "batches": len(workload.batches),
        "samples": sum(map(len, workload.batches)),
        "microbatches": workload.microbatches,
        "replicas": workload.replicas,
        "tried": found.tried,
        "pruned": found.pruned,
        "unfit": found.unfit,
        "schedules": found.schedules,
        "rule": None if found.rule is None else candidate_document(found.rule),
        "rule_refusal": found.rule_refusal,
        "candidates": [candidate_document(score) for score in found.candidates],
    }


def candidate_document(score: Score) -> dict[str, Any]:
    """One candidate: K, B and layers a chunk of every module, and what is predicted of it; seconds and bytes."""
    return {
        "split": score.split,
        "modules": candidate_modules(score.partition),
        "mean_s": score.mean,
        "makespans_s": list(score.makespans),
        "bound_gap": score.gap,
        "bubble": score.bubble,
        "state_bytes": list(score.state),
        "activation_bytes": list(score.activations),
    }


def candidate_modules(partition: Partition) -> dict[str, Any]:
    """K, B, and layers and rank of every chunk, by module."""
    limits = dict(partition.sub_microbatch)
    modules: dict[str, Any] = {}
    for chunk in partition.chunks:
        entry = modules.setdefault(chunk.module, {"sub_microbatch": limits.get(chunk.module), "parts": [], "ranks": []})
        entry["laps"] = chunk.segment + 1
        entry["parts"].append(chunk.stop - chunk.start)
        entry["ranks"].append(chunk.rank)
    return modules


def nominal_sizes(model: Model, partition: Partition, workload: Workload) -> dict[str, Sizes]:
    """The instances that a file's stage estimates are for: B mean ones, or those of a mean microbatch; none is none."""
    limits = dict(partition.sub_microbatch)
    microbatches = sum(min(workload.microbatches * workload.replicas, len(batch)) for batch in workload.batches)
    sizes = {}
    for module in model.modules:
        name = module.name
        instances = sum(len(sample.modules.get(name, ())) for batch in workload.batches for sample in batch)
        whole = max(1, round(instances / microbatches))
        sizes[name] = typical(model, name, workload, min(limits.get(name) or whole, whole))
    return sizes


def check_record(path: str | Path, document: Mapping[str, Any], ranks: int) -> None:
    """Check what a partition file says of its making, where it does; FileError for the first wrong field."""
    for name in ("table_sha256", "inputs_sha256"):
        value = document.get(name)
        if value is not None and not (isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)):
            raise _wrong(path, name, value, "64 hexadecimal digits")
    if "memory" in document:
        _memory(path, document["memory"], ranks)
    if "search" not in document:
        return
    search = _object(path, "search", document["search"], SEARCH)
    for name in SEARCH[:-3]:
        if type(search.get(name)) is not int or search[name] < 0:
            raise _wrong(path, f"search.{name}", search.get(name), "a whole number of at least 0")
    if not isinstance(search.get("rule_refusal"), str):
        raise _wrong(path, "search.rule_refusal", search.get("rule_refusal"), "a sentence, or nothing in quotes")
    candidates = search.get("candidates")
    if not isinstance(candidates, list) or not candidates:
        raise _wrong(path, "search.candidates", candidates, "a list of at least one candidate")
    rows = [(f"search.candidates[{number}]", row) for number, row in enumerate(candidates)]
    if search.get("rule") is not None:
        rows.append(("search.rule", search["rule"]))
    for place, row in rows:
        _check_candidate(path, place, row, ranks)


def _check_candidate(path: str | Path, place: str, row: Any, ranks: int) -> None:
    row = _object(path, place, row, CANDIDATE)
    if not isinstance(row.get("split"), str):
        raise _wrong(path, f"{place}.split", row.get("split"), "how its bounds were found")
    for name in ("mean_s", "bound_gap"):
        _number(path, f"{place}.{name}", row.get(name))
    if not _is_number(row.get("bubble")):
        raise _wrong(path, f"{place}.bubble", row.get("bubble"), "a share from 0 to 1")
    for name, count in (("makespans_s", None), ("state_bytes", ranks), ("activation_bytes", ranks)):
        values = row.get(name)
        if not isinstance(values, list) or not values or (count is not None and len(values) != count):
            raise _wrong(path, f"{place}.{name}", values, f"a list of {count or 'at least one'} numbers")
        for number, value in enumerate(values):
            _number(path, f"{place}.{name}[{number}]", value)
    modules = row.get("modules")
    if not isinstance(modules, dict) or not modules:
        raise _wrong(path, f"{place}.modules", modules, "an object with a member a module")
    for name, entry in modules.items():
        where = f"{place}.modules.{name}"
        entry = _object(path, where, entry, ("laps", "sub_microbatch", "parts", "ranks"))
        if not _is_count(entry.get("laps")):
            raise _wrong(path, f"{where}.laps", entry.get("laps"), "a whole number of at least 1")
        if entry.get("sub_microbatch") is not None and not _is_count(entry["sub_microbatch"]):
            raise _wrong(path, f"{where}.sub_microbatch", entry["sub_microbatch"], "a whole number or null")
        parts = entry.get("parts")
        if not isinstance(parts, list) or not all(map(_is_count, parts)):
            raise _wrong(path, f"{where}.parts", parts, "a list of layer counts")
        homes = entry.get("ranks")
        if not isinstance(homes, list) or len(homes) != len(parts) or not set(homes) <= set(range(ranks)):
            raise _wrong(path, f"{where}.ranks", homes, f"a rank of 0 to {ranks - 1} for each of {len(parts)} chunks")


def _memory(path: str | Path, rows: Any, ranks: int) -> None:
    if not isinstance(rows, list) or len(rows) != ranks:
        raise _wrong(path, "memory", rows, f"a list with one object for each of {ranks} ranks")
    for rank, row in enumerate(rows):
        entry = _object(path, f"memory[{rank}]", row, MEMORY)
        for key in MEMORY:
            _number(path, f"memory[{rank}].{key}", entry.get(key))


def _object(path: str | Path, place: str, value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(path, place, value, "an object")
    for name in value:
        if name not in names:
            raise FileError(f"{path}: {place} has the unknown field {name!r}; known are {', '.join(names)}")
    return value


def _number(path: str | Path, place: str, value: Any) -> None:
    if not _is_number(value) or value < 0:
        raise _wrong(path, place, value, "a number of 0 or more")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _wrong(path: str | Path, place: str, value: Any, expected: str) -> FileError:
    return FileError(f"{path}: field {place!r} is {repr(value)[:80]}, expected {expected}")
