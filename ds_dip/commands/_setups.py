"""What commands about a model's sampled batches are given: its partition, memory and costs, ready to be tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ds_dip.commands import FILE, refusing
from ds_dip.commands._inputs import COUNT, cost_inputs, named_strategies, run_document, workload_of, workload_options

if TYPE_CHECKING:
    from ds_dip.costs.model import CostModel
    from ds_dip.costs.weights import WeightShares
    from ds_dip.models.partition import Partition
    from ds_dip.models.spec import Model
    from ds_dip.partition.scoring import Scorer

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Inputs:
    """A model's sampled batches with costs and memory, and the partition that DIP has for them.

    ``evaluations``, ``seed`` and ``split``, what a split adds to a backward, are those of the run's planner.
    """

    model: Model
    scorer: Scorer
    costs: CostModel
    partition: Partition
    shares: WeightShares
    strategies: tuple[str, ...]
    evaluations: int
    seed: int
    split: float | None


def setup_options(command: _Command) -> _Command:
    """The options that say which model, on how many ranks, cut how, on which data."""
    options = (
        click.option("--ranks", type=COUNT, help="Pipeline ranks of a replica."),
        click.option("--partition", "partition_path", type=FILE, help="A partition; the paper's rule else."),
        workload_options,
        click.option("--tensor-parallel", type=COUNT, default=1, show_default=True, help="Devices that share a rank's "
                     "layers."),
        click.option("--replicas", type=COUNT, default=1, show_default=True, help="Data-parallel replicas."),
        click.option("--memory-strategies", metavar="NAME,…", help="none, selective and full: what stages may choose "
                     "from. All of them where memory is limited."),
        click.option("--batches", type=COUNT, default=8, show_default=True, help="Sample batches."),
        click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Of the sampler that draws them."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def files_of(given: Mapping[str, Any]) -> list[Path | None]:
    """The files that the options name, which are read."""
    return [given[name] for name in ("model_path", "partition_path", "data", "table", "device", "deepspeed_config")]


def inputs_of(given: Mapping[str, Any]) -> Inputs:
    """What the options say; refusals as for ``ds-dip partition``."""
    from ds_dip.config import read_config
    from ds_dip.costs.strategies import STRATEGIES
    from ds_dip.costs.table import read_table
    from ds_dip.costs.weights import WeightShares
    from ds_dip.models import load_model
    from ds_dip.partition.chunks import make_partition
    from ds_dip.partition.file import read_partition
    from ds_dip.partition.memory import Memory
    from ds_dip.partition.rule import rule_partition
    from ds_dip.partition.scoring import Scorer
    from ds_dip.planner.ordering import schedulers

    if given["ranks"] is None and given["partition_path"] is None:
        raise click.UsageError("give the model's --partition, or how many --ranks there are")
    model = load_model(given["model_path"])
    partition = None if given["partition_path"] is None else read_partition(given["partition_path"], model)
    ranks = given["ranks"] if partition is None else partition.ranks
    if given["ranks"] not in (None, ranks):
        raise click.UsageError(f"{given['partition_path']} is for {ranks} ranks, and --ranks {given['ranks']}")
    document = run_document(given)
    with refusing():
        sources = cost_inputs(given, document)
        costs, _ = sources.costs(model)
        workload, dip = workload_of(given, document), read_config(document)
        memory = Memory(
            bytes=None if given["memory_gb"] is None else given["memory_gb"] * 1e9,
            compute=sources.rates.compute,
            replicas=given["replicas"],
            link_depth=dip.link_depth,
            limits=dip.capacity(ranks),
            parallel=sources.parallel,
        )
    limited = memory.bytes is not None or any(own is not None for own in memory.limits)
    strategies = named_strategies(given["memory_strategies"])
    if not strategies:
        strategies = dip.strategies if dip.memory_strategies or not limited else STRATEGIES
    seed = dip.planner.seed if given["seed"] is None else given["seed"]
    scorer = Scorer(model, workload, costs, schedulers("dip", 0)[0], memory, sources.ending, strategies)
    if partition is None:
        microbatches = scorer.microbatches(make_partition(model, 1))
        most = {module.name: max(len(own.sizes[module.name]) for own in microbatches) for module in model.modules}
        partition = rule_partition(model, ranks, scorer.costs, workload, most)
    table = None if sources.table is None else read_table(sources.table)
    shares = WeightShares(model, sources.rates, table)
    return Inputs(
        model, scorer, scorer.costs, partition, shares, strategies, dip.planner.scored(), seed, dip.split_backward
    )
