"""What ``ds-dip rehearse`` and the emulating benchmarks prepare alike: partition, dilation, settings of the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from ds_dip.commands import Seconds, refusing
from ds_dip.commands._inputs import COUNT, PATH, cost_inputs, dataset_of, run_document, workload_of

if TYPE_CHECKING:
    from ds_dip.costs.model import CostModel
    from ds_dip.models.partition import Partition
    from ds_dip.models.spec import Model
    from ds_dip.partition.workload import Workload
    from ds_dip.rehearsal.session import Source

#: Of the sample batches, how many the partition is searched on, and schedules made for it.
_BATCHES, _EVALUATIONS = 4, 300
_OPTIONS = (
    click.option("--partition", "partition_path", type=PATH, help="A partition; else ds-dip partition's own answer."),
    click.option("--evaluations", type=COUNT, default=_EVALUATIONS, show_default=True,
                 help="Schedules to make for that answer at most."),
    click.option("--dilate", type=click.FloatRange(min=1e-6, max=1e6),
                 help="Times as slow as the device; by default what lets stages outweigh this machine's own time."),
    click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of the sampler and the planner's search."),
    click.option("--deadline", type=Seconds(min=1.0), default=1200.0, show_default=True, help="Seconds it may take."),
)  # fmt: skip


def rehearsal_options(command: Any) -> Any:
    """The options beside those of the workload."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that ranks are started with: the run's files and figures, its ``"dip"`` block, and where it all lives.

    ``state`` are bytes of parameters, gradients and optimizer state a rank, ``stage`` the seconds of a mean stage.
    """

    model: Model
    partition: Partition
    partition_path: Path
    source: Source
    costs: CostModel
    workload: Workload
    dilation: float
    stage: float
    block: dict[str, Any]
    state: tuple[float, ...]
    batch_size: int
    folder: Path
    dataset: dict[str, Any]

    def config(self, **dip: Any) -> dict[str, Any]:
        """The DeepSpeed JSON of the ranks, with these keys of the ``"dip"`` block replaced."""
        from ds_dip.rehearsal.session import configuration

        options = self.source.options(self.partition_path, self.dilation)
        return configuration(self.folder, {**self.block, **dip}, options, self.batch_size, self.workload.microbatches)

    def settings(self, **more: Any) -> dict[str, Any]:
        """Settings of a rank."""
        options = self.source.options(self.partition_path, self.dilation)
        return {"costs": options, "compute": self.source.rates.compute, "dataset": self.dataset, **more}


@contextmanager
def prepared(given: Mapping[str, Any]) -> Iterator[Prepared]:
    """Read what a command was given and cut the model; the files that ranks need live as long as the context."""
    from ds_dip.config import read_config
    from ds_dip.models import load_model
    from ds_dip.partition.memory import Memory
    from ds_dip.partition.workload import batch_shape
    from ds_dip.rehearsal.costs import real_costs
    from ds_dip.rehearsal.session import Source, dilation_for, mean_stage

    given = {**given, "replicas": 1, "batches": _BATCHES}
    model, document = load_model(given["model_path"]), run_document(given)
    with TemporaryDirectory() as name, refusing():
        folder = Path(name)
        inputs = cost_inputs(given, document)
        workload = workload_of(given, document)
        batch_size, microbatches = batch_shape(document)
        if batch_size % microbatches:
            raise click.UsageError(
                f"a batch of {batch_size} samples does not divide by {microbatches} microbatches, as DeepSpeed's "
                "engine needs it; change one of the two"
            )
        dip = read_config(document)
        memory = Memory(
            bytes=None if given["memory_gb"] is None else given["memory_gb"] * 1e9,
            compute=inputs.rates.compute,
            link_depth=dip.link_depth,
            limits=dip.capacity(given["ranks"]),
        )
        path, partition = _partition(given, model, inputs, workload, memory, folder)
        source = Source(given["model_path"], inputs.rates, inputs.table, inputs.rules)
        options = source.options(path, 1.0)
        costs = real_costs(model, **{key: options[key] for key in ("partition", "rates", "table", "rules")})
        scorer = _scorer(model, workload, costs, memory, dip.schedule)
        capacity = scorer.capacity(partition)
        block = dict(document.get("dip", {}))
        if any(limit is not None for limit in capacity):
            block["memory_gb"] = [None if limit is None else limit / 1e9 for limit in capacity]
        if given["seed"] is not None:
            block["planner"] = {**block.get("planner", {}), "seed": given["seed"]}
        stage = mean_stage(scorer.batches(partition)[0][0], model, partition, costs, inputs.rates.compute)
        yield Prepared(
            model=model,
            partition=partition,
            partition_path=path,
            source=source,
            costs=costs,
            workload=workload,
            dilation=given["dilate"] or dilation_for(stage, given["ranks"]),
            stage=stage,
            block=block,
            state=memory.state(model, partition),
            batch_size=batch_size,
            folder=folder,
            dataset=dataset_of(given).document(),
        )


def _partition(
    given: Mapping[str, Any], model: Model, inputs: Any, workload: Workload, memory: Any, folder: Path
) -> tuple[Path, Partition]:
    """(its file, the partition): the user's, or what the search finds."""
    from ds_dip.files import FileError
    from ds_dip.partition import read_partition
    from ds_dip.partition.offline import Inputs, partition_offline
    from ds_dip.partition.space import SearchOptions
    from ds_dip.planner.plan import schedulers

    path, ranks = given["partition_path"], given["ranks"]
    if path is not None:
        partition = read_partition(path, model)
        if partition.ranks != ranks:
            raise FileError(f"{path}: is for {partition.ranks} ranks, and --ranks is {ranks}; make the two agree")
        return path, partition
    costs, sha256 = inputs.costs(model)
    options = SearchOptions(evaluations=given["evaluations"])
    searched = Inputs(model, ranks, workload, sha256, evaluations=0, memory=memory, options=options)
    path = folder / "partition.json"
    partition, _ = partition_offline(searched, costs, schedulers("dip", 0)[0], path=path)
    return path, partition


def _scorer(model: Model, workload: Workload, costs: CostModel, memory: Any, schedule: str) -> Any:
    from ds_dip.partition.scoring import Scorer
    from ds_dip.planner.plan import schedulers

    return Scorer(model, workload, costs, schedulers(schedule, 0)[0], memory)
