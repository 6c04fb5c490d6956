"""``ds-dip example``: copies the scripts, settings, models and devices that come along, to begin with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click

from ds_dip.commands import Command
from ds_dip.files import FileError, check_folder
from ds_dip.shipped import FOLDERS, files, root


@click.command(
    "example",
    cls=Command,
    examples=["ds-dip example work    # then: cd work", "ds-dip example work --json"],
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Say as JSON what was copied.")
def command(folder: Path, as_json: bool) -> None:
    """Copy launch/, model_configs/ and profiling/ into FOLDER, under the names that the documentation uses.

    Commands find these files by the same names without a copy; scripts and settings are copied to be changed. Nothing
    that is there already is replaced.
    """
    source, found = root(), files()
    if source is None or not found:
        raise FileError(
            f"{', '.join(FOLDERS)} did not come with this installation of ds_dip; install its wheel, or clone the "
            "repository"
        )
    check_folder(folder, [])
    if there := [str(path) for path in found if (folder / path).exists()]:
        raise FileError(f"{folder / there[0]}: is there already, and would be replaced; name another folder")
    for path in found:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / path, folder / path)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "files": [str(path) for path in found]}))
        return
    click.echo(f"{len(found)} files in {folder}; train there by")
    click.echo(
        "  deepspeed --num_gpus 2 launch/train.py --deepspeed --deepspeed_config launch/quickstart_ds_config.json"
    )
