"""``ds-dip bench balance``: how even, and how fast, samples are put into microbatches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ds_dip.commands import DEVICE_FILE, FILE, MODEL_FILE, Command, Seconds, refusing
from ds_dip.commands._inputs import COUNT
from ds_dip.commands._measured import console_of, deliver
from ds_dip.commands._progress import waiting


@click.command(
    "balance",
    cls=Command,
    examples=[
        "ds-dip bench balance    # questions about images at the sizes of AI2D's and DocVQA's",
        "ds-dip bench balance --batch samples.jsonl --microbatches 64 --exact 10",
        "ds-dip bench balance --model model_configs/vlm_s.json --device profiling/devices/h800.json",
    ],
)
@click.option("--batch", type=FILE, help="Samples, a ds-dip/batch file, which are one global batch.")
@click.option(
    "--dataset", help="Instead: a dataset's factory, PACKAGE.MODULE:CALLABLE, drawn in batches of 64 to 2048."
)
@click.option("--dataset-options", default="{}", help="Options of the factory, a JSON object.")
@click.option(
    "--model",
    type=MODEL_FILE,
    help="A model's description: samples cost what its roofline says, not tokens.",
)
@click.option("--device", type=DEVICE_FILE, help="The device of the roofline.")
@click.option("--microbatches", type=COUNT, help="Microbatches of a global batch over all replicas; 16 samples each "
              "where this is left out.")  # fmt: skip
@click.option("--exact", type=Seconds(), help="Seconds that CP-SAT has for each batch; needs ds-dip[exact].")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
def command(
    batch: Path | None,
    dataset: str | None,
    dataset_options: str,
    model: Path | None,
    device: Path | None,
    microbatches: int | None,
    exact: float | None,
    as_json: bool,
) -> None:
    """Balance global batches into microbatches: time, and the fullest microbatch over the lower bound.

    Without a batch and a dataset: questions about images at the sizes of AI2D's and DocVQA's.
    """
    from ds_dip.benchmarks import balance

    if batch is not None and dataset is not None:
        raise click.UsageError("--batch and --dataset both say what the samples are; give one of them.")
    if (model is None) != (device is None):
        raise click.UsageError("--model and --device go together: give both, or neither.")
    with refusing():
        samples = _samples(batch, dataset, dataset_options, max(balance.SIZES))
    if not samples:
        raise click.UsageError(f"{batch or dataset} holds no sample; give at least one.")
    sizes = (
        [len(samples)] if batch is not None else [own for own in balance.SIZES if own <= len(samples)] or [len(samples)]
    )
    (modules, shares), unit = balance.token_shares(samples), "tokens"
    if model is not None and device is not None:
        (modules, shares), unit = _costed(samples, model, device), "seconds"
    if not shares.shape[1]:
        raise click.UsageError(f"no sample of {batch or dataset} has anything for a module; give samples that have.")
    with waiting("balancing"):
        document = balance.measure(shares, modules, unit, sizes, microbatches, exact)
    deliver(document, as_json, _show)


def _samples(batch: Path | None, dataset: str | None, options: str, most: int) -> list[Any]:
    from ds_dip.data import DatasetReference, read_batch
    from ds_dip.data.questions import ImageQuestions

    if batch is not None:
        return list(read_batch(batch))
    if dataset is None:
        drawn = ImageQuestions(most)
        return [drawn.metadata(index) for index in range(most)]
    try:
        named = json.loads(options)
    except ValueError as error:
        raise click.UsageError(f"--dataset-options is not JSON ({error}).") from error
    if not isinstance(named, dict):
        raise click.UsageError(f"--dataset-options is {options}, expected a JSON object.")
    opened = DatasetReference(dataset, named).open()
    return [opened.metadata(index) for index in range(min(most, len(opened)))]


def _costed(samples: list[Any], model: Path, device: Path) -> tuple[tuple[str, ...], Any]:
    import numpy as np

    from ds_dip.balancing.problem import in_shares
    from ds_dip.costs.devices import read_device
    from ds_dip.costs.model import module_seconds
    from ds_dip.costs.roofline import Roofline
    from ds_dip.models import load_model
    from ds_dip.planning.cut import sizes_of

    own = load_model(model)
    costs = Roofline(own, read_device(device).rates("bfloat16", "node"))
    seconds = np.array([module_seconds(own, costs, sizes_of([sample], own)) for sample in samples])
    return tuple(module.name for module in own.modules), in_shares(seconds)


def _show(document: dict[str, Any]) -> None:
    """A table on the terminal."""
    from rich.table import Table

    console = console_of(document)
    compared = list(document["sizes"][0]["compared"])
    exact = ["exact"] if "exact" in document["sizes"][0] else []
    title = f"the fullest microbatch over the bound, by the {document['unit']} of {', '.join(document['modules'])}"
    table = Table("samples", "microbatches", "ms", "over bound", "by", *compared, *exact, title=title)
    for row in document["sizes"]:
        others = [f"{row['compared'][name]['over_bound']:.4f}" for name in compared]
        others += [f"{row[name]['over_bound']:.4f}" for name in exact]
        table.add_row(str(row["samples"]), str(row["microbatches"]), f"{row['milliseconds']:.1f}",
                      f"{row['over_bound']:.4f}", row["method"], *others)  # fmt: skip
    console.print(table)
