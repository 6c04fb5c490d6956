"""``ds-dip parallelism``: chooses placement, TP, PP, DP, microbatches and K for a model, its data and GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands import DEVICE_FILE, FILE, MODEL_THERE, Command, refusing
from ds_dip.commands._inputs import COUNT, PLAIN_WIDTH, Gigabytes, searching
from ds_dip.files import FileError, read_json

if TYPE_CHECKING:
    from ds_dip.costs.table import LatencyTable
    from ds_dip.data import SampleMetadata
    from ds_dip.parallelism import Cluster, Job
    from ds_dip.scheduling import Problem, Schedule, Timeline

_PLACEMENTS = ("separated", "disaggregated", "contiguous")
#: The table has sentences.
_WIDTH = PLAIN_WIDTH + 60
#: How a ds-dip/batch file begins, whatever its name.
_BATCH = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"format"\s*:\s*"ds-dip/batch"')
#: Larger clusters and batches have more layouts than can be listed while somebody waits.
_GPUS, _SAMPLES = click.IntRange(1, 1 << 14), click.IntRange(1, 1 << 16)
#: Of what is simulated.
_EFFORT = click.IntRange(1, 1000)


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
@click.option("--gpus", type=_GPUS, required=True, help="GPUs in all.")
@click.option("--gpus-per-node", type=COUNT, required=True, help="GPUs of each node.")
@click.option("--global-batch", type=_SAMPLES, required=True, help="Samples of a global batch.")
@click.option("--compute", type=click.Choice(["float32", "bfloat16", "float16"]), help="Data type of the run.")
@click.option("--memory-gb", type=Gigabytes(), help="Memory of a GPU in 10^9 bytes; the device's else.")
@click.option("--objective", type=click.Choice(["scheduled", "mean"]), default="scheduled", show_default=True,
              help="Scheduled sample batches, or DFLOP's closed form at the mean point of the data.")  # fmt: skip
@click.option("--placement", type=click.Choice(_PLACEMENTS), help="Look at one placement only.")
@click.option("--most-tensor", type=COUNT, help="Largest tensor-parallel degree.")
@click.option("--most-laps", type=COUNT, default=4, show_default=True, help="Largest K.")
@click.option(
    "--pool", type=_EFFORT, default=20, show_default=True, help="Layouts of each placement to simulate first."
)
@click.option("--batches", type=_EFFORT, default=3, show_default=True, help="Sample batches to search by.")
@click.option("--held-out", type=_EFFORT, default=4, show_default=True, help="Other batches, to rank the best by.")
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
    from ds_dip.commands._chosen import check_chosen, settings_to_keep, write_chosen
    from ds_dip.parallelism import optimize
    from ds_dip.parallelism.optimizer import Effort
    from ds_dip.parallelism.planned import planned_and_simulated
    from ds_dip.parallelism.report import cannot_run, layouts_document
    from ds_dip.parallelism.space import Options
    from ds_dip.planner.ordering import fastest

    out: Path | None = given["out"]
    if out is not None:
        reads = ("model_path", "table", "device", "data_profile", "deepspeed_config")
        check_chosen(out, (given[name] for name in reads))
    base = settings_to_keep(given["deepspeed_config"])
    with refusing():
        job = _job(given, base)
        options = Options(
            placements=(given["placement"],) if given["placement"] else _PLACEMENTS,
            most_laps=given["most_laps"],
            most_tensor=given["most_tensor"] or given["gpus_per_node"],
        )
        effort = Effort(pool=given["pool"], batches=given["batches"], held_out=given["held_out"], seed=given["seed"])

    def scheduler(problem: Problem) -> tuple[str, Schedule, Timeline]:
        return fastest(problem, "dip")

    with searching("layouts") as progress:
        found = optimize(job, scheduler, options, effort, progress, mean_point=given["objective"] == "mean")
        held_out = job.drawn(effort.batches, effort.seed)
        planned = planned_and_simulated(job, found.best, held_out, scheduler)
    document = layouts_document(job, found, planned)
    written = []
    if out is not None:
        written = write_chosen(out, job, found, document, base, given["table"])
    elif refusal := cannot_run(found.best.layout):
        written = [f"the first cannot be launched: {refusal}"]
    if as_json := given["as_json"]:
        click.echo(json.dumps(document, indent=1))
    else:
        _show(document)
    for line in written:
        click.echo(line, err=as_json)


def _job(given: Mapping[str, Any], base: Mapping[str, Any]) -> Job:
    from ds_dip.config import read_config
    from ds_dip.models import load_model
    from ds_dip.parallelism import Job

    model, cluster = load_model(given["model_path"]), _cluster(given, base)
    return Job(model, _profile(given["data_profile"]), given["global_batch"], cluster, read_config(base).loss)


def _profile(path: Path) -> tuple[SampleMetadata, ...]:
    """The samples of a data profile, which lie beside it, or of a batch file."""
    from ds_dip.data import read_batch
    from ds_dip.profiling.data import FORMAT

    with path.open("rb") as stream:
        start = stream.read(256)
    if path.suffix == ".jsonl" or _BATCH.match(start):
        return read_batch(path)
    document = read_json(path, FORMAT)
    name = document.get("batch")
    if not isinstance(name, str) or Path(name).name != name:
        raise FileError(f"{path}: field 'batch' is {name!r}, expected the name of the file of samples beside it")
    return read_batch(path.with_name(name))


def _compute(given: Mapping[str, Any], base: Mapping[str, Any], table: LatencyTable | None) -> str:
    """The data type of the run, on which all that name one agree."""
    from ds_dip.partition.workload import compute_of

    said = {"--compute": given["compute"], given["table"]: None if table is None else table.dtype}
    if (kept := compute_of(base)) != "float32":  # which is what settings that name none say, too
        said[given["deepspeed_config"]] = kept
    named = {where: dtype for where, dtype in said.items() if dtype is not None}
    if len(set(named.values())) > 1:
        each = " and ".join(f"{where} {dtype}" for where, dtype in named.items())
        raise click.UsageError(f"the data type of the run: {each}; make them agree, or leave one of them out")
    return next(iter(named.values()), "bfloat16")


def _cluster(given: Mapping[str, Any], base: Mapping[str, Any]) -> Cluster:
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
    compute = _compute(given, base, table)
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
    if (own := document["planned"]) is not None:
        click.echo(
            f"the first on one held-out batch: {1e3 * own['simulated_s']:.1f} ms here, {1e3 * own['planned_s']:.1f} ms "
            "as a planner orders it without a search"
        )
