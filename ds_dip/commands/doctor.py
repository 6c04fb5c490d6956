"""``ds-dip doctor``: tells whether this machine can train, what is missing and how to get it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from ds_dip.commands import Command
from ds_dip.commands._inputs import PLAIN_WIDTH
from ds_dip.commands._progress import waiting

COLOURS = {"ok": "green", "optional": "cyan", "warning": "yellow", "error": "red"}


@click.command("doctor", cls=Command, examples=["ds-dip doctor", "ds-dip doctor --json"])
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(as_json: bool) -> None:
    """Tell whether this machine can train, what is missing and how to get it.

    Exits with 1 only where training cannot work.
    """
    from ds_dip.reporting.machine import examine

    with waiting("looking at this machine"):
        checks = examine()
    works = all(check.status != "error" for check in checks)
    if as_json:
        click.echo(json.dumps({"works": works, "checks": [asdict(check) for check in checks]}, indent=1))
        sys.exit(not works)

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("check", "status", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for check in checks:
        status = Text(check.status, style=COLOURS[check.status])
        table.add_row(check.name, status, Text(check.found), Text(check.remedy))
    console = Console(markup=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(table)
    failed = [check.name for check in checks if check.status == "error"]
    console.print("Training works here." if works else f"Training cannot work here: {', '.join(failed)}.")
    sys.exit(not works)
