"""``ds-dip compare``: sets every known schedule beside the others, on batches of a model's own data."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import MODEL, Command, Finite
from ds_dip.commands._inputs import COUNT, PLAIN_WIDTH
from ds_dip.commands._progress import waiting
from ds_dip.commands._setups import files_of, inputs_of, setup_options
from ds_dip.files import check_writable, write_atomic


@click.command(
    "compare",
    cls=Command,
    examples=[
        (
            "ds-dip compare --model model_configs/quickstart.json --ranks 2 --batch-size 16 --microbatches 4",
            "--dataset ds_dip.data.digits:Digits --dataset-options '{\"samples\": 400}' --plot compare.svg",
        ),
    ],
)
@click.option("--model", "model_path", type=MODEL, required=True, help="The model's description, or its folder.")
@setup_options
@click.option("--schedules", default="all", show_default=True, metavar="NAME,…|all", help="Which schedules.")
@click.option("--same-partition", is_flag=True, help="Run every schedule on DIP's partition, not on its own.")
@click.option("--most-laps", type=COUNT, default=4, show_default=True, help="Largest v of interleaved 1F1B.")
@click.option("--split-overhead", type=Finite(0.0, 10.0), help="Share by which a split backward takes longer; "
              "as the run's dip.split_backward else.")  # fmt: skip
@click.option(
    "--evaluations", type=COUNT, help="Schedules that a search scores of each batch; as the run's planner else."
)
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Where to draw it, an SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print a ds-dip/comparison document.")
def command(**given: Any) -> None:
    """Compare schedules on sampled batches: makespan, lower bound, bubble and memory, each with its spread.

    All batches are balanced and planned as training does it, and every schedule has the same costs, memory and memory
    strategies. By default each runs on the partition that suits it: GPipe, 1F1B and a static order on one stage a rank,
    interleaved 1F1B at its best v, DIP on --partition or on that of the paper's rule. Exit 1 where none can run.
    """
    from ds_dip.explaining.comparison import comparison_document, drawing
    from ds_dip.explaining.schedules import SCHEDULES, Setting, compared

    names = tuple(SCHEDULES) if given["schedules"] == "all" else tuple(given["schedules"].split(","))
    if unknown := [name for name in names if name not in SCHEDULES]:
        raise click.UsageError(
            f"--schedules: {', '.join(unknown)} is unknown: give some of {', '.join(SCHEDULES)}, or all"
        )
    plot: Path | None = given["plot"]
    if plot is not None:
        check_writable(plot, files_of(given))
    inputs = inputs_of(given)
    setting = Setting(
        inputs.scorer,
        inputs.partition,
        inputs.shares,
        inputs.strategies,
        given["evaluations"] or max(1, inputs.evaluations),
        inputs.seed,
        given["most_laps"],
        (inputs.split or 0.0) if given["split_overhead"] is None else given["split_overhead"],
        given["same_partition"],
    )
    with waiting("trying") as heard:
        trials = compared(setting, names, lambda name: heard({"name": name}))
    workload = inputs.scorer.workload
    document = comparison_document(
        trials,
        {
            "model": inputs.model.name,
            "ranks": inputs.partition.ranks,
            "batches": len(workload.batches),
            "samples": len(workload.batches[0]),
            "microbatches": workload.microbatches,
            "replicas": workload.replicas,
            "evaluations": setting.evaluations,
            "memory_strategies": list(inputs.strategies),
        },
    )
    if plot is not None:
        write_atomic(plot, drawing(document))
    if given["as_json"]:
        click.echo(json.dumps(document))
    else:
        _show(document)
        if plot is not None:
            click.echo(f"{plot}: written")
    if all("reason" in row for row in document["schedules"]):
        sys.exit(1)


def _show(document: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ds_dip.explaining.schedules import SCHEDULES
    from ds_dip.explaining.words import bytes_of, seconds_of

    title = (
        f"{document['model']} on {document['ranks']} ranks, {document['batches']} batches of {document['samples']} "
        f"samples in {document['microbatches']} microbatches; medians, least to most; searches score "
        f"{document['evaluations']} schedules"
    )
    table = Table("schedule", "makespan", "", "slower", "bound", "gap", "bubble", "activations", "on", title=title)
    for row in document["schedules"]:
        if "reason" in row:
            continue
        took, bubble = row["makespan_s"], row["bubble"]
        table.add_row(
            row["schedule"],
            seconds_of(took["median"]),
            f"{seconds_of(took['least'])} to {seconds_of(took['most'])}",
            f"{row['slower']:+.1%}",
            seconds_of(row["lower_bound_s"]["median"]),
            f"{max(0.0, row['gap']):.1%}",
            f"{bubble['median']:.1%} ({bubble['least']:.1%} to {bubble['most']:.1%})",
            bytes_of(row["activation_bytes"]),
            row["detail"],
        )
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH + 40
    console.print(table)
    for row in document["schedules"]:
        what = SCHEDULES[row["schedule"]][0]
        click.echo(f"{row['schedule']}: {what}" + (f"; cannot run: {row['reason']}" if "reason" in row else ""))
