"""What the benchmarks' commands show alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands._inputs import PLAIN_WIDTH

if TYPE_CHECKING:
    from rich.console import Console


def console_of(document: Mapping[str, Any]) -> Console:
    """A console, wide where it is no terminal, that has said where the document was measured."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(", ".join(f"{name} {value}" for name, value in document["machine"].items()))
    return console


def quartiles(spread: Mapping[str, float], digits: int = 3) -> str:
    """A median with its quartiles."""
    low, middle, high = (spread[name] for name in ("lower_quartile", "median", "upper_quartile"))
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def deliver(document: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    """Print the document as JSON, or show it."""
    if as_json:
        click.echo(json.dumps(document))
    else:
        show(document)
