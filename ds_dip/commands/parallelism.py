"""``ds-dip parallelism``: chooses placement, TP, PP, DP, microbatches and K for a model, its data and GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands import DEVICE_FILE, FILE, MODEL_THERE, Command, refusing
from ds_dip.commands._inputs import COUNT, PLAIN_WIDTH, Gigabytes, searching
from ds_dip.files import FileError, check_folder, read_json, read_object, write_json

if TYPE_CHECKING:
    from ds_dip.data import SampleMetadata
    from ds_dip.parallelism import Cluster, Job
    from ds_dip.parallelism.optimizer import Found

_PLACEMENTS = ("separated", "disaggregated", "contiguous")
#: The table has sentences.
_WIDTH = PLAIN_WIDTH + 60
_OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-4}}


@click.command(
    "parallelism",
    cls=Command,
    examples=[
        (
            "ds-dip parallelism --model model_configs/vlm_s.json --device profiling/devices/h800.json",
            "--data-profile data.json --gpus 64 --gpus-per-node 8 --global-batch 256 --out chosen",
        ),
    ],
)
@click.option("--model", "model_path", type=MODEL_THERE, required=True, help="The model's description.")
@click.option("--table", type=FILE, help="Latency table of the machine, from ds-dip profile.")
@click.option(
    "--device",
    type=DEVICE_FILE,
    help="The device's description: links, memory, and costs that no table has.",
)
@click.option(
    "--data-profile", type=FILE, required=True, help="What ds-dip profile --data wrote, or a ds-dip/batch file."
)
@click.option("--gpus", type=COUNT, required=True, help="GPUs in all.")
@click.option("--gpus-per-node", type=COUNT, required=True, help="GPUs of each node.")
@click.option("--global-batch", type=COUNT, required=True, help="Samples of a global batch.")
@click.option("--compute", type=click.Choice(["float32", "bfloat16", "float16"]), help="Data type of the run.")
@click.option("--memory-gb", type=Gigabytes(0, min_open=True), help="Memory of a GPU in 10^9 bytes; the device's else.")
@click.option("--objective", type=click.Choice(["scheduled", "mean"]), default="scheduled", show_default=True,
              help="Scheduled sample batches, or DFLOP's closed form at the mean point of the data.")  # fmt: skip
@click.option("--placement", type=click.Choice(_PLACEMENTS), help="Look at one placement only.")
@click.option("--most-tensor", type=COUNT, help="Largest tensor-parallel degree.")
@click.option("--most-laps", type=COUNT, default=4, show_default=True, help="Largest K.")
@click.option("--pool", type=COUNT, default=20, show_default=True, help="Layouts of each placement to simulate first.")
@click.option("--batches", type=COUNT, default=3, show_default=True, help="Sample batches to search by.")
@click.option("--held-out", type=COUNT, default=4, show_default=True, help="Other batches, to rank the best by.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Draws the batches.")
@click.option("--deepspeed-config", type=FILE, help="A DeepSpeed JSON whose other settings the written one keeps.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for layouts.json, partition.json "
              "and ds_config.json.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print layouts.json, not a table.")
def command(**given: Any) -> None:
    """Choose how GPUs share a model: the best ten layouts with predicted time, memory and bubble, and why each loses.

    A layout is scored by the makespan of sample batches that are balanced and scheduled as training does it, the
    slowest replica counting; every one holds the heaviest batch of the data profile.
    """
    from ds_dip.parallelism import optimize
    from ds_dip.parallelism.optimizer import Effort
    from ds_dip.parallelism.report import layouts_document
    from ds_dip.parallelism.space import Options
    from ds_dip.planner.ordering import fastest

    out: Path | None = given["out"]
    if out is not None:
        check_folder(out, ("layouts.json", "partition.json", "ds_config.json"))
    base = _base(given["deepspeed_config"])
    with refusing():
        job = _job(given)
        options = Options(
            placements=(given["placement"],) if given["placement"] else _PLACEMENTS,
            most_laps=given["most_laps"],
            most_tensor=given["most_tensor"] or given["gpus_per_node"],
        )
        effort = Effort(pool=given["pool"], batches=given["batches"], held_out=given["held_out"], seed=given["seed"])
    with searching("layouts") as progress:
        found = optimize(
            job,
            lambda problem: fastest(problem, "dip"),
            options,
            effort,
            progress,
            mean_point=given["objective"] == "mean",
        )
    document = layouts_document(job, found)
    written = _write(out, job, found, document, base) if out is not None else []
    if as_json := given["as_json"]:
        click.echo(json.dumps(document, indent=1))
    else:
        _show(document)
    for line in written:
        click.echo(line, err=as_json)


def _job(given: Mapping[str, Any]) -> Job:
    from ds_dip.models import load_model
    from ds_dip.parallelism import Job

    model = load_model(given["model_path"])
    return Job(model, _profile(given["data_profile"]), given["global_batch"], _cluster(given))


def _base(path: Path | None) -> dict[str, Any]:
    """The settings that the written DeepSpeed JSON keeps, read and checked before layouts are searched."""
    from ds_dip.config import read_config

    if path is None:
        return {}
    document = read_object(path, "a DeepSpeed JSON")
    read_config(document)
    return document


def _profile(path: Path) -> tuple[SampleMetadata, ...]:
    """The samples of a data profile, which lie beside it, or of a batch file."""
    from ds_dip.data import read_batch
    from ds_dip.profiling.data import FORMAT

    if path.suffix == ".jsonl":
        return read_batch(path)
    document = read_json(path, FORMAT)
    name = document.get("batch")
    if not isinstance(name, str) or Path(name).name != name:
        raise FileError(f"{path}: field 'batch' is {name!r}, expected the name of the file of samples beside it")
    return read_batch(path.with_name(name))


def _cluster(given: Mapping[str, Any]) -> Cluster:
    from dataclasses import replace

    from ds_dip.costs.devices import read_device
    from ds_dip.costs.ending import Ending
    from ds_dip.costs.parallel import TensorParallel
    from ds_dip.costs.roofline import Rates
    from ds_dip.costs.rules import base_costs
    from ds_dip.costs.table import read_table
    from ds_dip.parallelism import Cluster

    if given["table"] is None and given["device"] is None:
        raise click.UsageError("give what layers cost: --table, --device, or both")
    table = None if given["table"] is None else read_table(given["table"])
    compute = given["compute"] or (table.dtype if table is not None else "bfloat16")
    if table is not None and table.dtype != compute:
        raise click.UsageError(f"{given['table']} was made for {table.dtype}, and the run is in {compute}")
    memory, ending, rates = given["memory_gb"], None, Rates(compute=compute)
    node = TensorParallel(1, True, rates.link, rates.link_latency)
    if given["device"] is not None:
        device = read_device(given["device"])
        # A pipeline that spans nodes sends over the network.
        rates = device.rates(compute, "node" if given["gpus"] <= given["gpus_per_node"] else "network")
        node = device.tensor_parallel(1)
        ending = Ending(1, rates.link, rates.link_latency, rates.memory, compute)
        memory = device.memory_bytes / 1e9 if memory is None else memory

    def parallel(tensor: int) -> TensorParallel:
        return replace(node, degree=tensor)

    return Cluster(
        gpus=given["gpus"],
        per_node=given["gpus_per_node"],
        memory=None if memory is None else memory * 1e9,
        costs=lambda own, tensor: base_costs(own, rates, table, parallel=parallel(tensor)),
        parallel=parallel,
        ending=ending,
        compute=compute,
    )


def _write(out: Path, job: Job, found: Found, document: dict[str, Any], base: Mapping[str, Any]) -> list[str]:
    """Write the files; the lines that say what was written, or why not."""
    from ds_dip.parallelism import DISAGGREGATED, Simulator
    from ds_dip.parallelism.report import cannot_run
    from ds_dip.partition import write_partition

    best, lines = found.best, [f"{out / 'layouts.json'}: written"]
    write_json(out / "layouts.json", document)
    refusal, cut = cannot_run(best.layout), best.layout.placement != DISAGGREGATED
    for name, wanted in (("partition.json", cut), ("ds_config.json", not refusal)):
        if not wanted:
            (out / name).unlink(missing_ok=True)
    if cut:
        write_partition(out / "partition.json", job.model, best.partition)
        lines.append(f"{out / 'partition.json'}: written")
    if refusal:
        return [*lines, f"no DeepSpeed JSON is written: {refusal}"]
    layout = best.layout
    room = Simulator(job, [job.heaviest]).room(layout, best.partition)
    each = job.batch // (layout.microbatches * layout.backbone.data)
    config: dict[str, Any] = {"optimizer": _OPTIMIZER, "zero_optimization": {"stage": 1}} | dict(base)
    kept = {name: value for name, value in config.get("dip", {}).items() if name not in _REPLACED}
    block = kept | {"partition": str(out / "partition.json"), "memory_strategies": [layout.strategy]}
    if job.cluster.memory is not None:
        block["memory_gb"] = [None if left is None else left / 1e9 for left in room.left]
    config |= {
        "train_batch_size": job.batch,
        "train_micro_batch_size_per_gpu": each,
        "gradient_accumulation_steps": layout.microbatches,
        "dip": block,
    }
    if job.cluster.compute != "float32":
        config["bf16" if job.cluster.compute == "bfloat16" else "fp16"] = {"enabled": True}
    write_json(out / "ds_config.json", config)
    ranks = layout.backbone.pipeline
    lines.append(f"{out / 'ds_config.json'}: written; train.py --pipeline-ranks {ranks}")
    return lines


#: Settings of the block that a layout decides.
_REPLACED = ("laps", "sub_microbatch", "placement", "partition", "memory_strategies", "memory_gb")


def _show(document: Mapping[str, Any]) -> None:
    from rich.console import Console

    from ds_dip.parallelism.report import layouts_table

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    console.print(layouts_table(document))
    click.echo(
        f"{document['layouts']} meshes and microbatches, {document['simulated']} layouts simulated in "
        f"{document['schedules']} schedules; {document['unfit']} cannot run"
    )
