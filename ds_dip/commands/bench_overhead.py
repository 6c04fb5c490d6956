"""``ds-dip bench overhead``: DIPEngine beside DeepSpeed's PipelineEngine on uniform text in one 1F1B order."""

from __future__ import annotations

from typing import Any

import click

from ds_dip.commands import Command, Seconds
from ds_dip.commands._measured import console_of, deliver, quartiles
from ds_dip.commands._progress import waiting


@click.command(
    "overhead",
    cls=Command,
    examples=["ds-dip bench overhead", "ds-dip bench overhead --lead 1000 --json    # plans are made ahead"],
)
@click.option("--blocks", type=click.IntRange(min=1), default=15, show_default=True, help="Blocks of each engine.")
@click.option("--iterations", type=click.IntRange(min=1), default=6, show_default=True, help="Iterations a block.")
@click.option("--layers", type=click.IntRange(min=2), default=4, show_default=True, help="Decoder blocks.")
@click.option("--hidden", type=click.IntRange(min=8), default=128, show_default=True, help="Their hidden size.")
@click.option("--length", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens a sequence.")
@click.option(
    "--lead",
    type=click.IntRange(min=2, max=1000),
    default=2,
    show_default=True,
    help="Batches planned ahead; 1000 has all plans made in the first blocks, as on a core that is to spare.",
)
@click.option("--deadline", type=Seconds(min=1.0), default=600.0, show_default=True, help="Seconds it may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def command(
    blocks: int, iterations: int, layers: int, hidden: int, length: int, lead: int, deadline: float, as_json: bool
) -> None:
    """Measure DIPEngine / PipelineEngine on the same weights, data and microbatches, on two ranks in one run."""
    from ds_dip.ranks import result_of

    settings = {"blocks": blocks, "iterations": iterations, "layers": layers, "hidden": hidden, "length": length}
    settings["lead"] = lead
    with waiting("measuring") as heard:
        document = result_of("ds_dip.benchmarks.overhead", 2, settings, deadline, heard)
    deliver(document, as_json, _show)


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = console_of(document)
    columns = ("layers", "DIPEngine", "PipelineEngine", "ratio (quartiles)", "of processor time", "us/instruction")
    table = Table(*columns)
    for name in ("real", "near_empty"):
        part = document[name]
        ratio = part["ratio"]
        table.add_row(
            name.replace("_", "-"),
            *(f"{1e3 * part['seconds'][engine]['median']:.1f} ms" for engine in ("dip", "stock")),
            quartiles(ratio),
            f"{part['cpu_ratio']['median']:.3f}",
            f"{part['us_per_instruction']:.0f}",
        )
    console.print(table)
