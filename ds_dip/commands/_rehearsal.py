"""What ``ds-dip rehearse`` and the emulating benchmarks prepare alike: partition, dilation, settings of the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ds_dip.commands import Finite, Seconds, refusing
from ds_dip.commands._inputs import (
    COUNT,
    PATH,
    CostInputs,
    cost_inputs,
    dataset_of,
    run_document,
    searching,
    workload_of,
)
from ds_dip.shipped import find

if TYPE_CHECKING:
    from ds_dip.models.partition import Partition
    from ds_dip.models.spec import Model
    from ds_dip.partition.memory import Memory
    from ds_dip.partition.workload import Workload

#: Sample batches that a partition is searched on, and schedules made for it.
_BATCHES, _EVALUATIONS = 4, 300
_OPTIONS = (
    click.option("--partition", "partition_path", type=PATH, help="A partition; else ds-dip partition's own answer."),
    click.option("--evaluations", type=COUNT, default=_EVALUATIONS, show_default=True,
                 help="Schedules to make for that answer at most."),
    click.option("--dilate", type=Finite(min=0.1, max=1e6),
                 help="Times as slow as the device; by default what lets stages outweigh this machine's own time."),
    click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of the sampler and the planner's search."),
)  # fmt: skip
#: What a benchmark emulates where it is told nothing: VLM-S on ranks of four H800 each, by the data sheet, linked by
#: the network, and packed documents.
SAMPLE = {
    "model_path": find(Path("model_configs/vlm_s.json")),
    "dataset": "ds_dip.data.documents:PackedDocuments",
    "dataset_options": '{"samples": 4096}',
    "device": find(Path("profiling/devices/h800.json")),
    "link": "network",
    "rate": (("flops", "3.17e15"), ("memory", "1.2e13"), ("link", "8e10")),
    "compute": "bfloat16",
    "batch_size": 8,
    "microbatches": 8,
}


def rehearsal_options(command: Any) -> Any:
    """The options beside those of the workload."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def sampled(context: click.Context, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a benchmark was given, or the sample where it was told neither model, nor data, nor costs."""
    said = {name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if given["model_path"] is not None or said & {"data", "dataset", "table", "device", "deepspeed_config"}:
        if given["model_path"] is None:
            raise click.UsageError("give --model as well: data and costs are those of a model")
        return {**given, "model_path": Path(given["model_path"])}
    return {**given, **{name: value for name, value in SAMPLE.items() if name not in said}}


#: Seconds that all of it may take.
deadline_option = click.option(
    "--deadline", type=Seconds(min=1.0), default=1200.0, show_default=True, help="Seconds it may take."
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run's files and figures, its ``"dip"`` block, where everything lives, and how slow it is to be.

    ``stage`` are the device's seconds of a mean stage, ``work`` those of all stages of a batch, ``state`` bytes of
    parameters, gradients and optimizer state a rank.
    """

    given: Mapping[str, Any]
    model: Model
    inputs: CostInputs
    workload: Workload
    memory: Memory
    block: Mapping[str, Any]
    batch_size: int
    folder: Path
    partition: Partition
    partition_path: Path
    stage: float = 0.0
    work: float = 0.0
    dilation: float = 1.0

    @property
    def state(self) -> tuple[float, ...]:
        """Bytes of parameters, gradients and optimizer state on every rank."""
        return self.memory.state(self.model, self.partition)

    def searched(self, schedule: str, placements: Sequence[str]) -> Prepared:
        """The same with the partition that is best for another schedule, and at least as slow."""
        path, partition = _search(
            self.given, self.model, self.inputs, self.workload, self.memory, self.folder, schedule, placements
        )
        return _timed(replace(self, partition=partition, partition_path=path), self.dilation)

    def engine(self, **dip: Any) -> dict[str, Any]:
        """Costs and DeepSpeed JSON of a rank, with these keys of the ``"dip"`` block replaced."""
        from ds_dip.rehearsal.session import configuration, cost_options

        options = cost_options(
            self.given["model_path"],
            self.partition_path,
            self.inputs.rates,
            self.inputs.table,
            self.inputs.rules,
            self.dilation,
        )
        block = {**self.block, **_limits(self), **dip}
        work = self.work * self.dilation
        config = configuration(self.folder, block, options, self.batch_size, self.workload.microbatches, work)
        return {"costs": options, "config": config}

    def settings(self, **more: Any) -> dict[str, Any]:
        """What else a rank is told."""
        return {"compute": self.inputs.rates.compute, "dataset": dataset_of(self.given).document(), **more}


@contextmanager
def prepared(given: Mapping[str, Any]) -> Iterator[Prepared]:
    """Read what a command was given and cut the model; the files that ranks need live as long as the context."""
    from ds_dip.config import read_config
    from ds_dip.models import load_model
    from ds_dip.partition.memory import Memory
    from ds_dip.partition.sources import table_warnings
    from ds_dip.partition.workload import batch_shape

    given = {**given, "replicas": 1, "batches": _BATCHES}
    model, document = load_model(given["model_path"]), run_document(given)
    with TemporaryDirectory() as name, refusing():
        inputs, workload = cost_inputs(given, document), workload_of(given, document)
        batch_size, microbatches = batch_shape(document)
        if batch_size % microbatches:
            raise click.UsageError(
                f"a batch of {batch_size} samples does not divide by {microbatches} microbatches, as DeepSpeed's "
                "engine needs it; change one of the two"
            )
        for warning in table_warnings(inputs.table, model, workload):
            click.echo(f"warning: {warning}", err=True)
        dip = read_config(document)
        memory = Memory(
            bytes=None if given["memory_gb"] is None else given["memory_gb"] * 1e9,
            compute=inputs.rates.compute,
            link_depth=dip.link_depth,
            limits=dip.capacity(given["ranks"]),
        )
        block = dict(document.get("dip", {}))
        if given["seed"] is not None:
            block["planner"] = {**block.get("planner", {}), "seed": given["seed"]}
        folder = Path(name)
        path, partition = _partition(given, model, inputs, workload, memory, folder)
        run = Prepared(given, model, inputs, workload, memory, block, batch_size, folder, partition, path)
        yield _timed(run, 1.0)


def _partition(
    given: Mapping[str, Any], model: Model, inputs: CostInputs, workload: Workload, memory: Memory, folder: Path
) -> tuple[Path, Partition]:
    """(its file, the partition): the user's, or what a search finds."""
    from ds_dip.files import FileError
    from ds_dip.partition import read_partition
    from ds_dip.partition.chunks import PLACEMENTS

    path, ranks = given["partition_path"], given["ranks"]
    if path is None:
        return _search(given, model, inputs, workload, memory, folder, given.get("schedule") or "dip", PLACEMENTS)
    partition = read_partition(path, model)
    if partition.ranks != ranks:
        raise FileError(f"{path}: is for {partition.ranks} ranks, and --ranks is {ranks}; make the two agree")
    return path, partition


def _search(
    given: Mapping[str, Any],
    model: Model,
    inputs: CostInputs,
    workload: Workload,
    memory: Memory,
    folder: Path,
    schedule: str,
    placements: Sequence[str],
) -> tuple[Path, Partition]:
    from ds_dip.partition.offline import Inputs, partition_offline
    from ds_dip.partition.space import SearchOptions
    from ds_dip.planner.ordering import schedulers

    costs, sha256 = inputs.costs(model)
    options = SearchOptions(evaluations=given["evaluations"], placements=tuple(placements))
    searched = Inputs(model, given["ranks"], workload, sha256, schedule, 0, memory, options)
    path = folder / f"partition-{schedule}.json"
    with searching("schedules") as progress:
        partition, _ = partition_offline(searched, costs, schedulers(schedule, 0)[0], path=path, progress=progress)
    return path, partition


def _timed(run: Prepared, least: float) -> Prepared:
    """With the mean stage of the first sample batch, and the dilation that was given or that it asks for."""
    from ds_dip.rehearsal.session import dilation_for, stage_seconds

    batch = _scorer(run).batches(run.partition)[0][0]
    costs, _ = run.inputs.costs(run.model)
    stage, work = stage_seconds(batch, run.model, run.partition, costs, run.inputs.rates.compute)
    dilation = run.given["dilate"] or max(least, dilation_for(stage, run.partition.ranks))
    return replace(run, stage=stage, work=work, dilation=dilation)


def _limits(run: Prepared) -> dict[str, Any]:
    """``memory_gb`` for activations on every rank, where there is a limit."""
    capacity = _scorer(run).capacity(run.partition)
    if all(limit is None for limit in capacity):
        return {}
    return {"memory_gb": [None if limit is None else limit / 1e9 for limit in capacity]}


def _scorer(run: Prepared) -> Any:
    from ds_dip.partition.scoring import Scorer
    from ds_dip.planner.ordering import schedulers

    costs, _ = run.inputs.costs(run.model)
    return Scorer(run.model, run.workload, costs, schedulers("dip", 0)[0], run.memory)
