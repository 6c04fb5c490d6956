"""``ds-dip bench train``: the quickstart under DIPEngine and under static pipelines of DeepSpeed, in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import FILE, Seconds


@click.command("train")
@click.option("--ranks", type=click.IntRange(min=2), default=2, show_default=True, help="Pipeline ranks.")
@click.option("--model", type=FILE, default=Path("model_configs/quickstart.json"), show_default=True,
              help="A model of images and text.")  # fmt: skip
@click.option("--config", type=FILE, default=Path("launch/quickstart_ds_config.json"), show_default=True,
              help="The DeepSpeed JSON.")  # fmt: skip
@click.option("--blocks", type=click.IntRange(min=1), default=10, show_default=True, help="Blocks of each contender.")
@click.option("--iterations", type=click.IntRange(min=1), default=4, show_default=True, help="Iterations a block.")
@click.option("--deadline", type=Seconds(min=1.0), default=1200.0, show_default=True, help="Seconds it may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def command(
    ranks: int, model: Path, config: Path, blocks: int, iterations: int, deadline: float, as_json: bool
) -> None:
    """Train the same model on the same samples under every contender, and compare times, bubbles and memory.

    Contenders beside DIPEngine: DeepSpeed's PipelineEngine, cut by its default, cut best by measured layer times, and
    the latter on the microbatches that DIPEngine's planner balances; torch.distributed.pipelining with 1F1B and
    interleaved 1F1B, padded.
    """
    from ds_dip.ranks import result_of

    settings = {
        "model": str(model.resolve()), "config": str(config.resolve()), "ranks": ranks, "blocks": blocks,
        "iterations": iterations,
    }  # fmt: skip
    document = result_of("ds_dip.benchmarks.train", ranks, settings, deadline)
    if as_json:
        click.echo(json.dumps(document))
    else:
        _show(document)


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in document["machine"].items()))
    table = Table(
        "contender", "iteration", "over DIPEngine (quartiles)", "processor time", "bubble", "memory", "cut at"
    )
    for name, found in document["contenders"].items():
        over = found["over_dip"]
        table.add_row(
            name,
            f"{found['seconds']['median']:.3f} s",
            f"{over['median']:.2f} ({over['lower_quartile']:.2f} to {over['upper_quartile']:.2f})",
            f"{found['cpu_seconds']['median']:.3f} s",
            f"{100 * found['bubble']:.0f} %",
            f"{found['peak_bytes'] / 1e6:.1f} MB",
            "-" if found["bounds"] is None else ", ".join(map(str, found["bounds"][1:-1])),
        )
    console.print(table)
    for name, why in document["refused"].items():
        console.print(f"{name}: left out, {why}")
