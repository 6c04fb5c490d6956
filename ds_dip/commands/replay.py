"""``ds-dip replay``: shows where a recorded run's steps parted from their plans, and plans them again."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ds_dip.commands import Command
from ds_dip.commands._progress import waiting


@click.command(
    "replay",
    cls=Command,
    examples=[
        "ds-dip replay runs/quickstart",
        "ds-dip replay runs/quickstart --step 99",
        "ds-dip replay runs/quickstart --worst 10 --json",
    ],
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0), help="Show this step in all detail.")
@click.option("--worst", type=click.IntRange(min=0), default=3, show_default=True, help="Steps furthest off to show.")
@click.option(
    "--replica", type=click.IntRange(min=0), default=0, show_default=True, help="Which of the run's pipelines."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(folder: Path, step: int | None, worst: int, replica: int, as_json: bool) -> None:
    """Show where predicted and measured times of the recorded run in FOLDER part, and plan its steps again.

    FOLDER is a run's folder, with recording/ in it (see "dip.record" in the configuration). The difference of a step
    is split into stages that took longer, waiting that no stage explains, and reduction and optimizer step. Planning
    again opens the run's dataset.
    """
    from ds_dip.planner.recording import Recording
    from ds_dip.reporting.replay import Replay, Replayed, document, show

    replay = Replay(Recording(folder, replica), step)
    again = replay.worst(worst) if step is None else replay.steps
    shown: list[Replayed] = []
    with waiting("planning again", len(again)) as heard:
        for parts in again:
            heard({"done": len(shown)})
            shown.append(replay.again(parts))
    if as_json:
        click.echo(json.dumps(document(replay, shown)))
        return
    from rich.console import Console

    show(Console(markup=False), replay, shown, whole=step is not None)
