"""``ds-dip bench links``: posted messages beside blocking ones on the same plans, on ranks that wait."""

from __future__ import annotations

from typing import Any

import click

from ds_dip.commands import MODEL, Command
from ds_dip.commands._inputs import workload_options
from ds_dip.commands._measured import console_of, deliver, quartiles
from ds_dip.commands._progress import waiting
from ds_dip.commands._rehearsal import deadline_option, prepared, rehearsal_options, sampled


@click.command("links", cls=Command, examples=["ds-dip bench links --ranks 4", "ds-dip bench links --blocks 2 --json"])
@click.option("--model", "model_path", type=MODEL, help="The model's description.")
@click.option("--ranks", type=click.IntRange(2, 64), default=4, show_default=True, help="Pipeline ranks.")
@workload_options
@rehearsal_options
@deadline_option
@click.option("--blocks", type=click.IntRange(min=1), default=4, show_default=True, help="Blocks of each.")
@click.option("--iterations", type=click.IntRange(min=1), default=2, show_default=True, help="Iterations a block.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Run the same plans with posted messages and with blocking ones: an emulation, see ds-dip rehearse.

    Blocking messages follow the plan's own order, in which no ranks can wait for each other in a circle; a receive
    is made as late as it allows, and both ends stand still while the message travels. Without options VLM-S is
    emulated on ranks of four H800, by the data sheet.
    """
    from ds_dip.ranks import result_of
    from ds_dip.rehearsal.session import VARIABLES

    with prepared(sampled(context, given)) as run:
        settings = run.settings(**run.engine(), blocks=given["blocks"], iterations=given["iterations"])
        ranks, deadline = given["ranks"], given["deadline"]
        with waiting("emulating") as heard:
            found = result_of("ds_dip.benchmarks.links", ranks, settings, deadline, heard, 1, VARIABLES)
        document = {"model": run.model.name, "ranks": ranks, **found}
    deliver(document, given["as_json"], _show)


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = console_of(document)
    title = (
        f"emulation: {document['model']} on {document['ranks']} ranks that wait, {document['dilation']:g} times as "
        f"slow; simulated {document['simulated_seconds']:.3f} s"
    )
    table = Table("messages", "iteration", "over posted (quartiles)", "bubble", title=title, title_justify="left")
    for name, found in document["transports"].items():
        over = found["over_posted"]
        table.add_row(
            name,
            f"{found['seconds']['median']:.3f} s",
            quartiles(over),
            f"{100 * found['bubble']:.1f} %",
        )
    console.print(table)
