"""``ds-dip bench split``: whether it pays here to put weight gradients off, both ways in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import FILE, MODEL_FILE, Command, Finite, Seconds
from ds_dip.commands._inputs import Gigabytes
from ds_dip.commands._measured import quartiles
from ds_dip.commands._progress import waiting


@click.command("split", cls=Command, examples=["ds-dip bench split --wide 4 --memory-gb 0.1"])
@click.option("--ranks", type=click.IntRange(min=2), default=2, show_default=True, help="Pipeline ranks.")
@click.option("--model", type=MODEL_FILE, default=Path("model_configs/quickstart.json"), show_default=True,
              help="A model of images and text.")  # fmt: skip
@click.option("--config", type=FILE, default=Path("launch/quickstart_ds_config.json"), show_default=True,
              help="The DeepSpeed JSON.")  # fmt: skip
@click.option("--wide", type=click.IntRange(min=1), default=1, show_default=True, help="Make the model so much wider.")
@click.option("--memory-gb", type=Gigabytes(), help="dip.memory_gb, 10^9 bytes a rank.")
@click.option("--microbatches", type=click.IntRange(min=1), help="Microbatches of the batch.")
@click.option("--overhead", type=Finite(0, 10), default=0.05, show_default=True,
              help="dip.split_backward; 0 splits most.")  # fmt: skip
@click.option("--blocks", type=click.IntRange(min=1), default=10, show_default=True, help="Blocks of each.")
@click.option("--iterations", type=click.IntRange(min=1), default=3, show_default=True, help="Iterations a block.")
@click.option("--deadline", type=Seconds(min=1.0), default=1200.0, show_default=True, help="Seconds it may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def command(deadline: float, as_json: bool, **given: Any) -> None:
    """Train the same model on the same samples with whole and with split backwards, and compare."""
    from ds_dip.ranks import result_of

    files = {name: str(given[name].resolve()) for name in ("model", "config")}
    with waiting("measuring") as heard:
        document = result_of("ds_dip.benchmarks.split", given["ranks"], given | files, deadline, heard)
    if as_json:
        click.echo(json.dumps(document))
        return
    click.echo(", ".join(f"{name} {value}" for name, value in document["machine"].items()))
    click.echo(f"{document['put_off']['median']:.0f} of {document['backwards']} backwards split")
    for name, what in (
        ("predicted", "whole / split, predicted"),
        ("span", "whole / split, first to last stage"),
        ("whole_over_split", "whole / split, iteration"),
        ("busy", "split / whole, time in stages"),
    ):
        click.echo(f"{what}: {quartiles(document[name])}")
    whole, split = (document["peak_bytes"][name] / 1e6 for name in ("whole", "split"))
    click.echo(f"memory of an iteration: whole {whole:.1f} MB, split {split:.1f} MB")
