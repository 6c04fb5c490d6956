"""``ds-dip bench``: measures a part of ds_dip on this machine."""

from __future__ import annotations

import click

from ds_dip.commands import BENCH, LazyGroup


@click.command(
    "bench",
    cls=LazyGroup,
    prefix=BENCH,
    examples=["ds-dip bench train --ranks 2", "ds-dip bench schedule --part speed --json"],
)
def command() -> None:
    """Measure a part of ds_dip on this machine."""
