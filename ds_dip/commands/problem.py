"""``ds-dip problem``: writes the scheduling problem of a sampled batch of a model and its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import MODEL, Command
from ds_dip.commands._progress import waiting
from ds_dip.commands._setups import setup_options


@click.command(
    "problem",
    cls=Command,
    examples=[
        (
            "ds-dip problem --model model_configs/quickstart.json --ranks 2 --batch-size 16 --microbatches 4",
            "--dataset ds_dip.data.digits:Digits --dataset-options '{\"samples\": 400}' --out problem.json",
        ),
        (
            "ds-dip problem --model FOLDER --partition partition.json --batch 2 --memory-gb 80 --device h800",
            "--data samples.jsonl --batch-size 16 --microbatches 16 --out problem.json",
        ),
    ],
)
@click.option("--model", "model_path", type=MODEL, required=True, help="A model's description, or its folder.")
@setup_options
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Which of the sample batches.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where to write the problem.")
@click.option("--json", "as_json", is_flag=True, help="Print the problem's figures as JSON.")
def command(batch: int, out: Path, as_json: bool, **given: Any) -> None:
    """Write what a batch asks of its schedule as a ds-dip/problem: stages, lengths, memory and transfers.

    The problem is what the planner solves for the same samples: `ds-dip solve` searches its schedule, `check`,
    `report`, `explain` and `trace` show plans of it. With several replicas it is that of the first.
    """
    from ds_dip.commands._setups import files_of, inputs_of
    from ds_dip.explaining.trial import problem_of
    from ds_dip.files import check_writable
    from ds_dip.scheduling import lower_bound
    from ds_dip.scheduling.documents import write_problem

    if batch > given["batches"]:
        raise click.UsageError(f"--batch {batch}: there are --batches {given['batches']}; give a larger --batches")
    check_writable(out, files_of(given))
    with waiting("planning the batch"):
        inputs = inputs_of(given)
        samples = inputs.scorer.batches(inputs.partition)[batch - 1][0]
        task_graph = problem_of(inputs.scorer, samples, inputs.partition, inputs.strategies)
        bound, name = lower_bound(task_graph)
    write_problem(out, task_graph)
    figures = {"tasks": len(task_graph.tasks), "ranks": task_graph.ranks, "lower_bound": bound, "bound": name}
    if as_json:
        click.echo(json.dumps({**figures, "problem": str(out)}))
        return
    click.echo(
        f"batch {batch} of {inputs.model.name}: {figures['tasks']} tasks on {task_graph.ranks} ranks, no schedule is "
        f"below {bound:g} s ({name}); problem written to {out}"
    )
