"""``ds-dip bench neighbour``: how much a planner that never rests slows training, with a spare core and without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import FILE, MODEL_FILE, Command, Seconds
from ds_dip.commands._measured import console_of, deliver, quartiles
from ds_dip.commands._progress import waiting


@click.command(
    "neighbour", cls=Command, examples=["ds-dip bench neighbour", "ds-dip bench neighbour --ranks 1 --blocks 4 --json"]
)
@click.option("--ranks", type=click.IntRange(min=1), multiple=True, default=(1, 2), show_default=True,
              help="Pipeline ranks; may be repeated.")  # fmt: skip
@click.option("--model", type=MODEL_FILE, default=Path("model_configs/quickstart.json"), show_default=True,
              help="A model of images and text.")  # fmt: skip
@click.option("--config", type=FILE, default=Path("launch/quickstart_ds_config.json"), show_default=True,
              help="The DeepSpeed JSON.")  # fmt: skip
@click.option("--blocks", type=click.IntRange(min=1), default=8, show_default=True, help="Blocks of each kind.")
@click.option("--iterations", type=click.IntRange(min=1), default=6, show_default=True, help="Iterations a block.")
@click.option("--nice", type=click.IntRange(min=0, max=19), default=10, show_default=True,
              help="Niceness of the planner.")  # fmt: skip
@click.option("--deadline", type=Seconds(min=1.0), default=600.0, show_default=True,
              help="Seconds that each number of ranks may take.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def command(
    ranks: tuple[int, ...], model: Path, config: Path, blocks: int, iterations: int, nice: int, deadline: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Train in blocks, alone and beside a process that plans batch after batch as a planner does, but without a rest.

    The worst a planner can do: a run's own plans as many batches as there are, and rests.
    """
    from ds_dip.ranks import result_of

    cores = os.cpu_count() or 1
    found = []
    for count in ranks:
        settings = {
            "model": str(model.resolve()), "config": str(config.resolve()), "ranks": count, "blocks": blocks,
            "iterations": iterations, "nice": nice,
        }  # fmt: skip
        with waiting(f"measuring on {count} ranks") as heard:
            document = result_of("ds_dip.benchmarks.neighbour", count, settings, deadline, heard)
        found.append({**document, "spare_cores": cores - count * document["machine"]["threads"]})
    deliver(found, as_json, _show)


def _show(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    console = console_of(found[0])
    table = Table("ranks", "spare cores", "alone", "beside a planner", "slowdown (quartiles)")
    for document in found:
        ratio = document["slowdown"]
        table.add_row(
            str(document["settings"]["ranks"]),
            str(document["spare_cores"]),
            *(f"{1e3 * part['median']:.1f} ms" for part in document["seconds"].values()),
            quartiles(ratio),
        )
    console.print(table)
