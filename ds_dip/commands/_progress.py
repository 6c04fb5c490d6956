"""Bars of commands that take longer than a moment: on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def waiting(what: str, total: float | None = None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A bar on standard error: ``what`` is done, the time it takes, and how much of it once that is told.

    What is told are messages with ``done`` of ``total`` parts, or with ``name``, what is looked at; others are passed
    over.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[parts]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(what, total=total, parts="")

        def heard(message: Mapping[str, Any]) -> None:
            if "name" in message:
                bars.update(task, description=f"{what}: {message['name']}")
            if "done" in message:
                done, whole = message["done"], message.get("total", total)
                bars.update(task, completed=done, total=whole, parts=f"{done:g}/{whole:g}" if whole else f"{done:g}")

        yield heard
