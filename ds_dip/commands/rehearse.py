"""``ds-dip rehearse``: runs a job's plans on this machine, on ranks that wait instead of computing."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click

from ds_dip.commands import MODEL, Command
from ds_dip.commands._inputs import COUNT, PLAIN_WIDTH, workload_options
from ds_dip.commands._progress import waiting
from ds_dip.commands._rehearsal import Prepared, deadline_option, prepared, rehearsal_options

#: Parts that a batch's difference is the sum of, and what they are called on the screen.
PARTS = ("plan", "stages", "between", "end")


@click.command(
    "rehearse",
    cls=Command,
    examples=[
        (
            "ds-dip rehearse --model model_configs/vlm_s.json --ranks 4 --compute bfloat16",
            "--batch-size 8 --microbatches 8",
            "--dataset ds_dip.data.documents:PackedDocuments --dataset-options '{\"samples\": 4096}'",
            "--device profiling/devices/h800.json --link network --rate flops=3.17e15",
        ),
    ],
)
@click.option("--model", "model_path", type=MODEL, required=True, help="The model's description.")
@click.option("--ranks", type=click.IntRange(2, 64), required=True, help="Pipeline ranks, all on this machine.")
@workload_options
@rehearsal_options
@deadline_option
@click.option("--schedule", type=click.Choice(["dip", "interleaved", "1f1b"]), help="How batches are scheduled.")
@click.option("--steps", type=COUNT, default=5, show_default=True, help="Batches to compare, after two that are not.")
@click.option("--timelines", type=click.Path(path_type=Path, file_okay=False), help="Folder for their timelines.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(**given: Any) -> None:
    """Run the real engine, planner, links and programs on ranks that wait instead of computing: an emulation.

    Every stage and every message lasts as long as the costs say of the model on the device, times the dilation; what
    is written is divided by it. A batch's time is compared with its simulation, and the difference told apart: the
    plan before the first stage, stages that took longer than told, what was between stages (late messages,
    instructions), and the end of the batch. docs/rehearsal.md says what it shows and what it does not.
    """
    from ds_dip.ranks import run_ranks
    from ds_dip.rehearsal.session import VARIABLES

    with prepared(given) as run:
        schedule = {} if given["schedule"] is None else {"schedule": given["schedule"]}
        timelines = given["timelines"] and str(given["timelines"].resolve())
        settings = run.settings(**run.engine(**schedule), steps=given["steps"], timelines=timelines)
        batches: list[dict[str, Any]] = []
        end: dict[str, Any] = {}

        with waiting("emulating", given["steps"]) as show:

            def heard(message: dict[str, Any]) -> None:
                if "batch" in message:
                    batches.append(message["batch"])
                    show({"done": len(batches)})
                end.update(message.get("end", {}))

            ranks, deadline = given["ranks"], given["deadline"]
            run_ranks("ds_dip.rehearsal.worker", ranks, 1, settings, deadline, heard, variables=VARIABLES)
        document = _document(run, given, batches, end)
    if given["as_json"]:
        click.echo(json.dumps(document, indent=1))
    else:
        _show(document)


def _document(
    run: Prepared, given: dict[str, Any], batches: list[dict[str, Any]], end: dict[str, Any]
) -> dict[str, Any]:
    predicted, measured = (fmean(batch[name] for batch in batches) for name in ("predicted", "measured"))
    device = given["table"] or given["device"]
    return {
        "format": "ds-dip/rehearsal",
        "version": 1,
        "emulated": True,
        "model": run.model.name,
        "ranks": given["ranks"],
        "costs": None if device is None else str(device),
        "dilation": run.dilation,
        "mean_stage_seconds": run.stage,
        "predicted_seconds": predicted,
        "measured_seconds": measured,
        "difference": measured / predicted - 1.0,
        "parts": {name: fmean(batch[name] for batch in batches) / predicted for name in PARTS},
        "bubble_predicted": fmean(batch["bubble_predicted"] for batch in batches),
        "bubble_measured": fmean(batch["bubble_measured"] for batch in batches),
        "memory": {"state_bytes": max(run.state), "activation_bytes": max(batch["peak_memory"] for batch in batches)},
        "batches": batches,
        **end,
    }


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    title = (
        f"emulation: {document['model']} on {document['ranks']} ranks that wait, {document['dilation']:g} times as "
        "slow as the device; seconds are the device's"
    )
    table = Table("batch", "schedule", "stages", "simulated", "emulated", "difference",
                  *PARTS, "bubbles of both", title=title, title_justify="left")  # fmt: skip
    for batch in document["batches"]:
        shares = (f"{100 * batch[name] / batch['predicted']:+.2f} %" for name in PARTS)
        table.add_row(
            str(batch["step"]),
            batch["schedule"] if batch["kind"] == "planned" else f"{batch['schedule']} (fallback)",
            str(batch["stage_count"]),
            f"{batch['predicted']:.3f} s",
            f"{batch['measured']:.3f} s",
            f"{100 * batch['difference']:+.2f} %",
            *shares,
            f"{100 * batch['bubble_predicted']:.1f}, {100 * batch['bubble_measured']:.1f} %",
        )
    console.print(table)
    memory, late = document["memory"], document["late"]
    click.echo(
        f"emulation: {document['measured_seconds']:.4f} s an iteration, {100 * document['difference']:+.2f} % beside "
        f"the simulated {document['predicted_seconds']:.4f} s; a mean stage of "
        f"{1e3 * document['mean_stage_seconds']:.2f} ms waited {document['dilation']:g} times as long"
    )
    click.echo(
        f"predicted memory of the fullest rank: {memory['activation_bytes'] / 1e9:.3g} GB of activations, "
        f"{memory['state_bytes'] / 1e9:.3g} GB of parameters, gradients and optimizer state"
    )
    middle = median(batch["waited"] for batch in document["batches"])
    click.echo(
        f"messages came {1e6 * late['mean']:.0f} us after they were due (mean; at most {1e3 * late['largest']:.2f} "
        f"ms); ranks waited {1e3 * middle:.2f} ms for a plan, which took {document['plan_seconds']:.2f} s of this "
        f"machine to make; {sum(document['fallbacks'].values())} fallbacks"
    )
