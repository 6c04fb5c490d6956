"""``ds-dip bench memory``: what memory strategies save and cost, and how well their memory is predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ds_dip.commands import FILE, MODEL_FILE, Command, Finite, Seconds
from ds_dip.commands._measured import console_of, deliver, quartiles
from ds_dip.commands._progress import waiting


@click.command(
    "memory", cls=Command, examples=["ds-dip bench memory", "ds-dip bench memory --limit 0.8 --limit 0.6 --json"]
)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Pipeline ranks.")
@click.option("--model", type=MODEL_FILE, default=Path("model_configs/quickstart.json"), show_default=True,
              help="A model of images and text.")  # fmt: skip
@click.option("--config", type=FILE, default=Path("launch/quickstart_ds_config.json"), show_default=True,
              help="The DeepSpeed JSON.")  # fmt: skip
@click.option("--limit", "limits", type=Finite(min=0.0, max=1.0, min_open=True), multiple=True,
              default=(0.7, 0.5), show_default=True,
              help="A share of what keeping everything takes; may be repeated.")  # fmt: skip
@click.option("--blocks", type=click.IntRange(min=1), default=6, show_default=True, help="Blocks of each contender.")
@click.option("--iterations", type=click.IntRange(min=1), default=3, show_default=True, help="Iterations a block.")
@click.option("--deadline", type=Seconds(min=1.0), default=600.0, show_default=True, help="Seconds it may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def command(
    ranks: int, model: Path, config: Path, limits: tuple[float, ...], blocks: int, iterations: int, deadline: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Train one batch again and again by each strategy, and by all of them under limits.

    Shows every rank's predicted peak of activations and messages beside what the allocator counts, and the time over
    that of keeping everything.
    """
    from ds_dip.ranks import result_of

    settings = {
        "model": str(model.resolve()), "config": str(config.resolve()), "ranks": ranks, "limits": limits,
        "blocks": blocks, "iterations": iterations,
    }  # fmt: skip
    with waiting("measuring") as heard:
        document = result_of("ds_dip.benchmarks.memory", ranks, settings, deadline, heard)
    deliver(document, as_json, _show)


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = console_of(document)
    table = Table("strategies", "predicted peak, by rank", "measured", "largest error", "time over none", "stages")
    for name, found in document["contenders"].items():
        predicted, measured, over = found["predicted_bytes"], found["measured_bytes"], found["over_none"]
        errors = [abs(own / real - 1) for own, real in zip(predicted, measured, strict=True)]
        table.add_row(
            name,
            ", ".join(f"{own / 1e6:.2f}" for own in predicted) + " MB",
            ", ".join(f"{own / 1e6:.2f}" for own in measured) + " MB",
            f"{max(errors):.1%}",
            quartiles(over, 2),
            ", ".join(f"{count} {strategy}" for strategy, count in found["stages"].items()),
        )
    console.print(table)
