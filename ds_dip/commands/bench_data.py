"""``ds-dip bench data``: how fast conversations are indexed, and what training waits for their media."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import FILE, MODEL_FILE, Command, Seconds, refusing
from ds_dip.commands._inputs import COUNT
from ds_dip.commands._measured import console_of, deliver, quartiles
from ds_dip.commands._progress import waiting


@click.command("data", cls=Command, examples=["ds-dip bench data", "ds-dip bench data --side 640 --workers 4 --json"])
@click.option("--model", type=MODEL_FILE, default=Path("model_configs/quickstart.json"), show_default=True,
              help="A model of images and text.")  # fmt: skip
@click.option("--config", type=FILE, default=Path("launch/quickstart_ds_config.json"), show_default=True,
              help="The DeepSpeed JSON.")  # fmt: skip
@click.option("--samples", type=COUNT, default=4000, show_default=True, help="Records to index, about a picture each.")
@click.option(
    "--side", type=click.IntRange(8, 4096), default=224, show_default=True, help="Pixels of a picture's side."
)
@click.option("--trained", type=COUNT, default=512, show_default=True, help="Samples that the run trains on.")
@click.option("--ranks", type=click.IntRange(2, 64), default=2, show_default=True, help="Pipeline ranks.")
@click.option(
    "--workers", type=click.IntRange(0, 64), multiple=True, default=(0, 1, 2), show_default=True, help="Threads a rank."
)
@click.option("--blocks", type=COUNT, default=6, show_default=True, help="Blocks of each.")
@click.option("--iterations", type=COUNT, default=8, show_default=True, help="Iterations a block.")
@click.option("--deadline", type=Seconds(min=1.0), default=600.0, show_default=True, help="Seconds it may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def command(**given: Any) -> None:
    """Index pictures that are made for it, then train on some of them with their media at hand and loaded ahead.

    All of a run's ranks and threads share this machine's cores. "Waited" is what the slowest rank of a step waited for
    data; "over at hand" is what loading costs altogether, also where nobody waits for it.
    """
    from ds_dip.benchmarks import indexing
    from ds_dip.ranks import result_of

    processor = {"model": str(given["model"].resolve())}
    with tempfile.TemporaryDirectory() as folder, refusing(), waiting("measuring") as heard:
        (cold := Path(folder, "cold")).mkdir()
        index = indexing.measure(*indexing.make_media(cold, given["samples"], given["side"]), processor, cold)
        (trained := Path(folder, "trained")).mkdir()
        path, _ = indexing.make_media(trained, given["trained"], given["side"])
        settings = {
            "model": processor["model"],
            "config": str(given["config"].resolve()),
            "dataset": {"files": str(path), "processor": processor},
            "workers": list(given["workers"]),
            "blocks": given["blocks"],
            "iterations": given["iterations"],
        }
        document = result_of("ds_dip.benchmarks.loading", given["ranks"], settings, given["deadline"], heard)
    document |= {"side": given["side"], "index": index}
    deliver(document, given["as_json"], _show)


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    console, index = console_of(document), document["index"]
    console.print(
        f"{index['images']} pictures: {index['headers_per_s_one_thread']:.0f} headers a second in one thread; indexed "
        f"with {index['records']} records in {index['cold_s']:.2f} s, {index['images_per_s']:.0f} pictures a second"
    )
    console.print(
        f"gone on with from the middle {index['resumed_from_half_s']:.2f} s, one record more "
        f"{index['refreshed_records_s']:.2f} s, opened as it is {index['opened_s']:.2f} s"
    )
    title = f"{document['batch_size']} samples a step, {document['ranks']} ranks, pictures of {document['side']} pixels"
    columns = ("samples", "step (quartiles)", "over at hand", "waited", "of the step", "processor time")
    table = Table(*columns, title=title, title_justify="left")
    for name, own in document["contenders"].items():
        table.add_row(
            name,
            f"{quartiles(own['seconds'])} s",
            quartiles(own["over_at_hand"]),
            f"{1e3 * own['waited_seconds']['median']:.2f} ms",
            f"{own['waited_share']:.2%}",
            f"{own['cpu_seconds']['median']:.3f} s",
        )
    console.print(table)
