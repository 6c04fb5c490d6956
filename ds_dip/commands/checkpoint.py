"""``ds-dip checkpoint``: shows a checkpoint, and converts it so that another partition can load it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import Group
from ds_dip.commands._progress import waiting

_PATH = click.Path(path_type=Path)


@click.group(
    "checkpoint",
    cls=Group,
    examples=["ds-dip checkpoint show checkpoints", "ds-dip checkpoint convert checkpoints universal"],
)
def command() -> None:
    """Show a checkpoint, or convert it so that another partition can load it."""


@command.command(
    "convert",
    examples=[
        "ds-dip checkpoint convert checkpoints universal",
        "ds-dip checkpoint convert checkpoints/global_step300 universal --json",
    ],
)
@click.argument("source", metavar="SRC", type=_PATH)
@click.argument("target", metavar="DST", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the new checkpoint's manifest as JSON.")
def convert(source: Path, target: Path, as_json: bool) -> None:
    """Write the universal form of checkpoint SRC as the new folder DST.

    SRC is a checkpoint's own folder, or the folder it was saved in, whose "latest" is taken. Any
    partition, number of pipeline ranks and replicas loads DST, with "checkpoint":
    {"load_universal": true} in the DeepSpeed JSON. SRC is left as it is.
    """
    from rich.console import Console
    from rich.progress import Progress

    # DeepSpeed looks for an accelerator when it is imported; a conversion needs none.
    os.environ["DS_ACCELERATOR"] = "cpu"
    from ds_dip.runtime.universal import convert as write

    folder = _folder(source)
    console = Console(stderr=True)
    with _ending(), Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(folder.name)
        manifest = write(folder, target, lambda done, whole: bar.update(task, completed=done, total=whole))
    if as_json:
        click.echo(json.dumps(manifest, indent=1))
        return
    size = sum(manifest["files"].values())
    click.echo(f"step {manifest['step']}, {len(manifest['files'])} files, {_bytes(size)}: {target}")
    click.echo(
        f'load it with "checkpoint": {{"load_universal": true}} and load_checkpoint({str(target.parent)!r}, '
        f"{target.name!r})"
    )


@contextmanager
def _ending() -> Iterator[None]:
    """Signals that end a process end the work as Ctrl-C does, so that it takes its drafts with it."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@command.command(
    "show", examples=["ds-dip checkpoint show checkpoints", "ds-dip checkpoint show checkpoints/global_step300 --json"]
)
@click.argument("folder", metavar="PATH", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the checkpoint's manifest as JSON.")
def show(folder: Path, as_json: bool) -> None:
    """Print step, partition, hash, ranks and sizes of a checkpoint, and check that it is complete and undamaged.

    PATH is a checkpoint's own folder, or the folder it was saved in, whose "latest" is taken.
    """
    from ds_dip.partition.checkpoint import check_contents, check_files, read_manifest

    folder = _folder(folder)
    manifest = read_manifest(folder)
    with waiting("reading the files"):
        check_files(folder, manifest)
        check_contents(folder, manifest, manifest["files"])
    if as_json:
        click.echo(json.dumps(manifest, indent=1))
        return
    for name, value in _lines(folder, manifest):
        click.echo(f"{name:<12} {value}")


def _folder(path: Path) -> Path:
    """The checkpoint's own folder."""
    from ds_dip.partition.checkpoint import NAME, resolve

    return path if (path / NAME).exists() else resolve(path, None) or path


def _lines(folder: Path, manifest: dict[str, Any]) -> list[tuple[str, str]]:
    sizes: dict[str, tuple[int, int]] = {}
    for name, size in manifest["files"].items():
        kind = _kind(name)
        count, total = sizes.get(kind, (0, 0))
        sizes[kind] = count + 1, total + size
    sampler = manifest["sampler"]
    lines = [
        ("checkpoint", f"{folder}{' (universal)' if manifest['universal'] else ''}"),
        ("step", str(manifest["step"])),
        ("model", f"{manifest['model']} ({manifest['model_sha256'][:12]})"),
        ("partition", manifest["partition_sha256"]),
        ("ranks", f"{manifest['pipeline_ranks']} pipeline ranks x {manifest['replicas']} replicas"),
    ]
    for name, module in manifest["partition"]["modules"].items():
        for chunk in module["chunks"]:
            layers = f"{chunk['start']}-{chunk['stop'] - 1}"
            lines.append(("", f"{name} layers {layers} on rank {chunk['rank']}, lap {chunk['segment']}"))
    lines += [
        ("optimizer", f"{manifest['optimizer']}, {manifest['compute']}"),
        ("sampler", f"seed {sampler['seed']}, {sampler['batch_size']} samples a step"),
    ]
    lines += [("files", f"{kind}: {count}, {_bytes(total)}") for kind, (count, total) in sorted(sizes.items())]
    return lines


def _kind(name: str) -> str:
    if name.startswith("layer_"):
        return "layers"
    if name.startswith("zero/"):
        return "parameters with optimizer state"
    return "optimizer state" if "optim_states" in name else "state of ranks"


def _bytes(size: float) -> str:
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
