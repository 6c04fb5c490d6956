"""What ``ds-dip parallelism`` writes: the layouts, and what a launch of the best reads where the runtime carries it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds_dip.config import BLOCK, ConfigError, read_config, show
from ds_dip.files import TargetError, check_folder, read_object, write_json
from ds_dip.partition.workload import compute_of
from ds_dip.unsupported import refuse_unsupported

if TYPE_CHECKING:
    from ds_dip.parallelism import Job
    from ds_dip.parallelism.optimizer import Found

_LAYOUTS, _PARTITION, _CONFIG = _NAMES = ("layouts.json", "partition.json", "ds_config.json")
#: How a file of layouts begins.
_OURS = b'{"format": "ds-dip/layouts"'
_OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-4}}
#: Settings of the block that a layout decides.
_REPLACED = ("laps", "sub_microbatch", "placement", "partition", "memory_strategies", "memory_gb")
#: Settings that a layout is not chosen for, with the only values that it is.
_FIXED = {"schedule": "dip", "split_backward": None, "replay": None}


def check_chosen(folder: Path, reads: Iterable[Path | None]) -> None:
    """Make the folder where it is missing, and check that the files may be written in it.

    Raises TargetError as ``check_folder`` and ``check_writable`` do, for one that is read as well, and where files of
    these names are there that no earlier choice has left: they would be replaced, or removed.
    """
    check_folder(folder, _NAMES, reads)
    ours = folder / _LAYOUTS
    if not (ours.exists() and ours.read_bytes()[: len(_OURS)] == _OURS):
        for path in (folder / name for name in _NAMES):
            if path.exists():
                raise TargetError(
                    f"{path}: is not of an earlier choice of layouts and would be replaced or removed; name another "
                    "folder"
                )


def settings_to_keep(path: Path | None) -> dict[str, Any]:
    """A DeepSpeed JSON's settings, nothing without a file.

    Raises FileError and ConfigError where it cannot be read, cannot be run, or asks for what no layout is chosen for.
    """
    if path is None:
        return {}
    document = read_object(path, "a DeepSpeed JSON")
    block = read_config(document)
    refuse_unsupported(document, fp16_supported=True)
    for key, value in _FIXED.items():
        if getattr(block, key) != value:
            raise ConfigError(
                f'{path}: "{BLOCK}.{key}" is {show(getattr(block, key))}, and layouts are chosen for {show(value)}; '
                "leave it out"
            )
    return document


def write_chosen(
    folder: Path, job: Job, found: Found, document: Mapping[str, Any], base: Mapping[str, Any], table: Path | None
) -> list[str]:
    """Write the files; the lines that say what was written, or why not.

    The DeepSpeed JSON comes last: where it is, what it names is there too.
    """
    from ds_dip.parallelism import DISAGGREGATED
    from ds_dip.parallelism.report import cannot_run
    from ds_dip.partition import write_partition

    layout, partition = found.best.layout, folder / _PARTITION
    refusal = cannot_run(layout)
    config = None if refusal else _launched(job, found, base, partition, table)
    write_json(folder / _LAYOUTS, document)
    lines = [f"{folder / _LAYOUTS}: written"]
    (folder / _CONFIG).unlink(missing_ok=True)
    if layout.placement == DISAGGREGATED:
        partition.unlink(missing_ok=True)
    else:
        write_partition(partition, job.model, found.best.partition)
        lines.append(f"{partition}: written")
    if config is None:
        return [*lines, f"no DeepSpeed JSON is written: {refusal}"]
    write_json(folder / _CONFIG, config)
    return [*lines, f"{folder / _CONFIG}: written; train.py --pipeline-ranks {layout.backbone.pipeline}"]


def _launched(job: Job, found: Found, base: Mapping[str, Any], partition: Path, table: Path | None) -> dict[str, Any]:
    """The DeepSpeed JSON of the best layout; paths in it hold from wherever it is launched."""
    from ds_dip.parallelism import Simulator

    layout = found.best.layout
    room = Simulator(job, [job.heaviest]).room(layout, found.best.partition)
    config: dict[str, Any] = {"optimizer": _OPTIMIZER, "zero_optimization": {"stage": 1}} | dict(base)
    kept = {name: value for name, value in config.get(BLOCK, {}).items() if name not in _REPLACED}
    block = kept | {"partition": os.path.abspath(partition), "memory_strategies": [layout.strategy]}
    if table is not None:
        block["table"] = os.path.abspath(table)
    if job.cluster.memory is not None:
        block["memory_gb"] = [None if left is None else left / 1e9 for left in room.left]
    config |= {
        "train_batch_size": job.batch,
        "train_micro_batch_size_per_gpu": job.batch // (layout.microbatches * layout.backbone.data),
        "gradient_accumulation_steps": layout.microbatches,
        BLOCK: block,
    }
    if (compute := job.cluster.compute) not in ("float32", compute_of(config)):
        key = "bf16" if compute == "bfloat16" else "fp16"
        config[key] = config.get(key, {}) | {"enabled": True}
    return config
