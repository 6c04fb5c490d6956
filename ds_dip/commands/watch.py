"""``ds-dip watch``: shows a run while it goes: loss, throughput, bubble, plans, memory, fallbacks."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ds_dip.commands import Command, Seconds
from ds_dip.commands._inputs import PLAIN_WIDTH

if TYPE_CHECKING:
    from rich.console import Console

    from ds_dip.reporting.live import Live

#: How a run ended that did not end well.
_BAD = ("failed", "dead")


@click.command(
    "watch",
    cls=Command,
    examples=[
        "ds-dip watch runs/quickstart            # until the run ends; Ctrl-C leaves it alone",
        "ds-dip watch runs/quickstart --wait 120 # a run that is about to start",
        "ds-dip watch runs/quickstart --once --json | jq .loss",
    ],
)
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option("--once", is_flag=True, help="Show it as it is and end; so it does where there is no terminal.")
@click.option("--interval", type=Seconds(min=0.1), default=1.0, show_default=True, help="Seconds between two looks.")
@click.option("--wait", type=click.IntRange(0, 86400), default=0, help="Seconds to wait for the run to begin.")
@click.option("--json", "as_json", is_flag=True, help="Print figures, condition and the file as JSON, once.")
def command(run: Path, once: bool, interval: float, wait: int, as_json: bool) -> None:
    """Show the run in folder RUN: loss, throughput, bubble, predicted and measured time, planner, memory, fallbacks.

    The run writes them to RUN/live.json once a second. One that has ended, failed, gone silent or whose process is gone
    is told as such. Exits with 1 where it failed or is gone.
    """
    from rich.console import Console

    from ds_dip.reporting.live import condition
    from ds_dip.reporting.watch import document, view

    live = _first(run, wait)
    if as_json:
        found = condition(live)
        click.echo(json.dumps({**document(live, found), "live": asdict(live)}))
        sys.exit(found in _BAD)
    console = Console(markup=False, highlight=False)
    if once or not console.is_terminal:
        if not console.is_terminal:
            console.width = PLAIN_WIDTH
        found = condition(live)
        console.print(view(live, found, str(run)))
        sys.exit(found in _BAD)
    sys.exit(_follow(run, live, console, interval) in _BAD)


def _first(run: Path, wait: float) -> Live:
    """The run's file, which may be up to ``wait`` seconds away."""
    from ds_dip.files import FileError
    from ds_dip.reporting.live import NAME, read_live

    end = time.monotonic() + wait
    while True:
        try:
            return read_live(run)
        except FileError:
            if (run / NAME).exists() or time.monotonic() >= end:
                raise
        time.sleep(min(0.2, max(0.0, end - time.monotonic())))


def _follow(run: Path, live: Live, console: Console, interval: float) -> str:
    """Show the run until it has ended or Ctrl-C; how it was at last."""
    from rich.live import Live as Screen

    from ds_dip.reporting.live import condition, read_live
    from ds_dip.reporting.watch import view

    found = condition(live)
    with Screen(view(live, found, str(run)), console=console, auto_refresh=False) as screen:
        try:
            while found in ("training", "silent"):
                time.sleep(interval)
                live = read_live(run)
                found = condition(live)
                screen.update(view(live, found, str(run)), refresh=True)
        except KeyboardInterrupt:
            return "left"
    return found
