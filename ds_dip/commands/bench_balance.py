"""``ds-dip bench balance``: how even, and how fast, samples are put into microbatches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ds_dip.commands import DEVICE_FILE, FILE, MODEL_THERE, Command, Seconds, refusing
from ds_dip.commands._inputs import COUNT
from ds_dip.commands._measured import console_of, deliver, quartiles
from ds_dip.commands._progress import waiting

#: Options of one measurement alone.
_BALANCED = ("batch", "dataset", "dataset_options", "device", "exact")
_TRAINED = ("config", "ranks", "replicas", "wide", "patch", "samples", "blocks", "iterations", "deadline")


@click.command(
    "balance",
    cls=Command,
    examples=[
        "ds-dip bench balance    # questions about images at the sizes of AI2D's and DocVQA's",
        "ds-dip bench balance --batch samples.jsonl --microbatches 64 --exact 10",
        "ds-dip bench balance --model model_configs/vlm_s.json --device profiling/devices/h800.json",
        "ds-dip bench balance --train    # two replicas, samples balanced and in turn",
    ],
)
@click.option("--batch", type=FILE, help="Samples, a ds-dip/batch file, which are one global batch.")
@click.option(
    "--dataset", help="Instead: a dataset's factory, PACKAGE.MODULE:CALLABLE, drawn in batches of 64 to 2048."
)
@click.option("--dataset-options", default="{}", help="Options of the factory, a JSON object.")
@click.option(
    "--model",
    type=MODEL_THERE,
    help="A model's description: samples cost what its roofline says, not tokens.",
)
@click.option("--device", type=DEVICE_FILE, help="The device of the roofline.")
@click.option("--microbatches", type=COUNT, help="Microbatches of a global batch over all replicas; 16 samples each "
              "where this is left out. With --train those of a replica, 2 where it is left out.")  # fmt: skip
@click.option("--exact", type=Seconds(), help="Seconds that CP-SAT has for each batch; needs ds-dip[exact].")
@click.option("--train", is_flag=True, help="Instead: train on two replicas, samples balanced and in turn; --model and "
              "the options below are for this.")  # fmt: skip
@click.option("--config", type=FILE, default=Path("launch/quickstart_ds_config.json"), show_default=True,
              help="The DeepSpeed JSON; the options here say its batch.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, help="Ranks of each pipeline.")
@click.option("--replicas", type=click.IntRange(min=2), default=2, show_default=True, help="Pipelines.")
@click.option("--wide", type=click.IntRange(min=1), default=4, show_default=True, help="Make the model so much wider.")
@click.option("--patch", type=click.IntRange(min=1), default=1, show_default=True,
              help="Pixels of a patch's side.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1, 1024), default=4, show_default=True,
              help="Samples of a mean microbatch.")  # fmt: skip
@click.option("--blocks", type=click.IntRange(min=1), default=10, show_default=True, help="Blocks of each.")
@click.option("--iterations", type=click.IntRange(min=1), default=4, show_default=True, help="Iterations a block.")
@click.option("--deadline", type=Seconds(min=1.0), default=900.0, show_default=True, help="Seconds it may take.")
@click.option("--json", "as_json", is_flag=True, help="Print the measurements as JSON.")
@click.pass_context
def command(
    context: click.Context,
    /,
    batch: Path | None,
    dataset: str | None,
    dataset_options: str,
    model: Path | None,
    device: Path | None,
    microbatches: int | None,
    exact: float | None,
    as_json: bool,
    train: bool,
    **trained: Any,
) -> None:
    """Balance global batches into microbatches: time, and the fullest microbatch over the lower bound.

    Without a batch and a dataset: questions about images at the sizes of AI2D's and DocVQA's. With --train two engines
    train the quickstart, wide enough for layers to be what takes time, in turn on texts with few and with many images,
    one of them with dip.planner.balanced off.
    """
    _check(context, train)
    if train:
        deliver(_trained(model, trained | {"microbatches": microbatches or 2}), as_json, _show_trained)
        return
    from ds_dip.benchmarks import balance

    if batch is not None and dataset is not None:
        raise click.UsageError("--batch and --dataset both say what the samples are; give one of them.")
    if dataset is None and _is_given(context, "dataset_options"):
        raise click.UsageError("--dataset-options are those of --dataset; give that too, or leave them out.")
    if (model is None) != (device is None):
        raise click.UsageError("--model and --device go together: give both, or neither.")
    with refusing():
        samples = _samples(batch, dataset, dataset_options, max(balance.SIZES))
    if not samples:
        raise click.UsageError(f"{batch or dataset} holds no sample; give at least one.")
    sizes = (
        [len(samples)] if batch is not None else [own for own in balance.SIZES if own <= len(samples)] or [len(samples)]
    )
    if microbatches is not None:
        sizes = [own for own in sizes if own >= microbatches]
        if not sizes:
            raise click.UsageError(
                f"--microbatches {microbatches} are more than there are samples in a batch, {len(samples)}; each takes "
                "at least one."
            )
    (modules, shares), unit = balance.token_shares(samples), "tokens"
    if model is not None and device is not None:
        (modules, shares), unit = _costed(samples, model, device, microbatches), "seconds"
    if not shares.shape[1]:
        raise click.UsageError(f"no sample of {batch or dataset} has anything for a module; give samples that have.")
    with waiting("balancing"):
        document = balance.measure(shares, modules, unit, sizes, microbatches, exact)
    deliver(document, as_json, _show)


def _check(context: click.Context, train: bool) -> None:
    """Refuse options of the other measurement."""
    others = _BALANCED if train else _TRAINED
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in others and _is_given(context, name):
            how = "not with --train; leave it out" if train else "for --train; give that too, or leave it out"
            raise click.UsageError(f"{parameter.opts[0]} is {how}.")


def _is_given(context: click.Context, name: str) -> bool:
    """Whether an option was given, and not left at its default."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _trained(model: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    from ds_dip.benchmarks.described import widened
    from ds_dip.data.digits import Digits, sizes_for
    from ds_dip.ranks import result_of
    from ds_dip.shipped import find

    model = model or find(Path("quickstart"), "model_configs")
    if model.is_dir():
        raise click.UsageError(f"--model {model} is a folder, and --train makes a model wider by its file; name one.")
    with refusing():
        # Here, where it is one sentence, and not in every rank.
        sizes = sizes_for(widened(str(model), given["wide"], given["patch"]))
        Digits(1, patch=sizes["patch"], merge=sizes["merge"])
    named = {"model": str(model.resolve()), "config": str(given["config"].resolve())}
    counts = {name: own for name, own in given.items() if name not in ("config", "deadline")}
    world = given["ranks"] * given["replicas"]
    with waiting("measuring") as heard:
        return result_of("ds_dip.benchmarks.balanced", world, named | counts, given["deadline"], heard)


def _show_trained(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = console_of(document)
    own = document["settings"]
    longer, busier = (quartiles(document[f"{name}in_turn_over_balanced"], 2) for name in ("", "busiest_"))
    title = (
        f"{own['replicas']} replicas of {own['ranks']} ranks: samples in turn take {longer} times as long, and "
        f"{busier} times the processor time of the busiest rank (quartiles)"
    )
    columns = (
        "samples",
        "iteration",
        "busiest rank",
        "slowest replica over the mean, planned",
        "by loads",
        "fallbacks",
    )
    table = Table(*columns, title=title, title_justify="left")
    for name, seconds in document["seconds"].items():
        table.add_row(
            name,
            f"{1e3 * seconds['median']:.1f} ms",
            f"{1e3 * document['busiest_seconds'][name]['median']:.1f} ms",
            f"{document['slowest_replica'][name]:+.1%}",
            f"{document['heaviest_replica'][name]:+.1%}",
            str(document["fallbacks"][name]),
        )
    console.print(table)


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


def _costed(samples: list[Any], model: Path, device: Path, microbatches: int | None) -> tuple[tuple[str, ...], Any]:
    import numpy as np

    from ds_dip.balancing.problem import in_shares
    from ds_dip.benchmarks.balance import SAMPLES
    from ds_dip.costs.devices import read_device
    from ds_dip.costs.roofline import Roofline
    from ds_dip.models import load_model
    from ds_dip.planning import loads_of

    own = load_model(model)
    costs = Roofline(own, read_device(device).rates("bfloat16", "node"))
    load = loads_of(own, costs, SAMPLES if microbatches is None else len(samples) / microbatches)
    seconds = np.array([load(sample).seconds for sample in samples])
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
