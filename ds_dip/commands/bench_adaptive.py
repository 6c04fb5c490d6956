"""``ds-dip bench adaptive``: makes one rank and one shape slow in a real run, and shows how plans follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ds_dip.commands import FILE, MODEL_FILE, Command, Finite, Seconds
from ds_dip.commands._measured import console_of, deliver, quartiles
from ds_dip.commands._progress import waiting


@click.command(
    "adaptive",
    cls=Command,
    examples=["ds-dip bench adaptive", "ds-dip bench adaptive --ranks 2 --steps 12 --factor 3 --json"],
)
@click.option("--ranks", type=click.IntRange(min=2), default=2, show_default=True, help="Pipeline ranks.")
@click.option("--model", type=MODEL_FILE, default=Path("model_configs/quickstart.json"), show_default=True,
              help="A model of images and text.")  # fmt: skip
@click.option("--config", type=FILE, default=Path("launch/quickstart_ds_config.json"), show_default=True,
              help="The DeepSpeed JSON.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=6), default=24, show_default=True, help="Steps of each phase.")
@click.option("--factor", type=Finite(min=1.1, max=10.0), default=2.0, show_default=True,
              help="How much longer the slow stages take.")  # fmt: skip
@click.option("--deadline", type=Seconds(min=1.0), default=900.0, show_default=True, help="Seconds it may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def command(ranks: int, model: Path, config: Path, steps: int, factor: float, deadline: float, as_json: bool) -> None:
    """Train two engines in turn, one of which follows single ranks and shapes, while stages are slowed by hand.

    The stages of the last rank are made slow, and later those of the first module's commonest size. A phase shows after
    how many steps the slow stages' predictions were right again, and how the two engines' iterations compare in its
    second half.
    """
    from ds_dip.ranks import result_of

    settings = {
        "model": str(model.resolve()), "config": str(config.resolve()), "ranks": ranks, "steps": steps,
        "factor": factor,
    }  # fmt: skip
    with waiting("measuring") as heard:
        document = result_of("ds_dip.benchmarks.adaptive", ranks, settings, deadline, heard)
    deliver(document, as_json, _show)


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = console_of(document)
    table = Table(
        "phase", "followed after", "lines alone", "error at first", "at last", "lines alone / adaptive", "telling"
    )
    for name, phase in document["phases"].items():
        after = {which: "never" if n is None else f"{n} steps" for which, n in phase["followed_after"].items()}
        errors, ratio = phase["errors"]["adaptive"], phase["lines_over_adaptive"]
        table.add_row(
            name,
            after["adaptive"],
            after["lines alone"],
            f"{errors[0]:+.0%}",
            f"{sorted(errors[-5:])[2]:+.0%}",
            quartiles(ratio),
            f"{'every step' if phase['tracking'] else 'some steps'}, {1e6 * phase['tracking_seconds']:.0f} us each",
        )
    console.print(table)
