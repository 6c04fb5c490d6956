"""``ds-dip bench train``: the quickstart under DIPEngine and under static pipelines of DeepSpeed, in one run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ds_dip.commands import FILE, MODEL_FILE, Command, Seconds
from ds_dip.commands._inputs import workload_options
from ds_dip.commands._measured import console_of, quartiles
from ds_dip.commands._progress import waiting
from ds_dip.commands._rehearsal import prepared, rehearsal_options, sampled


@click.command(
    "train", cls=Command, examples=["ds-dip bench train --ranks 2", "ds-dip bench train --emulate --ranks 4 --json"]
)
@click.option("--ranks", type=click.IntRange(min=2), default=2, show_default=True, help="Pipeline ranks.")
@click.option("--model", type=MODEL_FILE, default=Path("model_configs/quickstart.json"), show_default=True,
              help="A model of images and text.")  # fmt: skip
@click.option("--config", type=FILE, default=Path("launch/quickstart_ds_config.json"), show_default=True,
              help="The DeepSpeed JSON.")  # fmt: skip
@click.option("--blocks", type=click.IntRange(min=1), default=10, show_default=True, help="Blocks of each contender.")
@click.option("--iterations", type=click.IntRange(min=1), default=4, show_default=True, help="Iterations a block.")
@click.option("--deadline", type=Seconds(min=1.0), default=1200.0, show_default=True, help="Seconds it may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
@click.option("--emulate", is_flag=True, help="Measure on ranks that wait; the options below are for this.")
@workload_options
@rehearsal_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Train the same model on the same samples under every contender, and compare times, bubbles and memory.

    Contenders beside DIPEngine: DeepSpeed's PipelineEngine, cut by its default, cut best by measured layer times, and
    the latter on the microbatches that DIPEngine's planner balances; torch.distributed.pipelining with 1F1B and
    interleaved 1F1B, padded.

    With --emulate no rank computes (see ds-dip rehearse): DIPEngine under its own schedule and interleaved 1F1B, each
    on the partition that is best for it, and DeepSpeed's PipelineEngine under the same three cuts. Without further
    options VLM-S is emulated on ranks of four H800, by the data sheet.
    """
    document = _emulated(context, given) if given["emulate"] else _trained(context, given)
    if given["as_json"]:
        click.echo(json.dumps(document))
    elif given["emulate"]:
        _show_emulated(document)
    else:
        _show(document)


def _trained(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    from ds_dip.ranks import result_of

    own = ("ranks", "model", "config", "blocks", "iterations", "deadline", "as_json")
    for name in given:
        if name not in own and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            raise click.UsageError(f"{option} is for --emulate; give that too, or leave it out")
    settings = {
        "model": str(given["model"].resolve()), "config": str(given["config"].resolve()), "ranks": given["ranks"],
        "blocks": given["blocks"], "iterations": given["iterations"],
    }  # fmt: skip
    with waiting("measuring") as heard:
        return result_of("ds_dip.benchmarks.train", given["ranks"], settings, given["deadline"], heard)


def _emulated(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    from ds_dip.ranks import result_of
    from ds_dip.rehearsal.session import VARIABLES

    if context.get_parameter_source("config") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--config is for training; give an emulated run's by --deepspeed-config")
    chosen = context.get_parameter_source("model") is ParameterSource.COMMANDLINE
    given = {**given, "model_path": given["model"] if chosen else None}
    with prepared(sampled(context, given)) as run:
        interleaved = run.searched("interleaved", ("looped",))
        run = replace(run, dilation=interleaved.dilation)
        engines = {"dip": run.engine(schedule="dip"), "interleaved 1F1B": interleaved.engine(schedule="interleaved")}
        settings = run.settings(engines=engines, blocks=given["blocks"], iterations=given["iterations"])
        ranks, deadline = given["ranks"], given["deadline"]
        with waiting("emulating") as heard:
            found = result_of("ds_dip.benchmarks.emulated", ranks, settings, deadline, heard, 1, VARIABLES)
        return {"model": run.model.name, "ranks": ranks, "dilation": run.dilation, **found}


def _show_emulated(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = console_of(document)
    title = (
        f"emulation: {document['model']} on {document['ranks']} ranks that wait, {document['dilation']:g} times as "
        "slow as the device"
    )
    table = Table("contender", "iteration", "over DIP (quartiles)", "bubble", "cut at", title=title,
                  title_justify="left")  # fmt: skip
    for name, found in document["contenders"].items():
        over = found["over_dip"]
        table.add_row(
            name,
            f"{found['seconds']['median']:.3f} s",
            quartiles(over, 2),
            f"{100 * found['bubble']:.0f} %",
            "-" if found["bounds"] is None else ", ".join(map(str, found["bounds"][1:-1])),
        )
    console.print(table)


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = console_of(document)
    table = Table(
        "contender", "iteration", "over DIPEngine (quartiles)", "processor time", "bubble", "memory", "cut at"
    )
    for name, found in document["contenders"].items():
        over = found["over_dip"]
        table.add_row(
            name,
            f"{found['seconds']['median']:.3f} s",
            quartiles(over, 2),
            f"{found['cpu_seconds']['median']:.3f} s",
            f"{100 * found['bubble']:.0f} %",
            f"{found['peak_bytes'] / 1e6:.1f} MB",
            "-" if found["bounds"] is None else ", ".join(map(str, found["bounds"][1:-1])),
        )
    console.print(table)
    console.print(
        f"DIPEngine's plan predicts {document['predicted_peak_bytes'] / 1e6:.1f} MB of activations and messages; "
        "memory also holds what the optimizer's step and the parameters' gradients take"
    )
    for name, why in document["refused"].items():
        console.print(f"{name}: left out, {why}")
