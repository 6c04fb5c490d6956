"""The partition of a run: from its file, by a method of DeepSpeed's, or by a search on its own data."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils import logger

from ds_dip.config import ConfigError, read_config
from ds_dip.costs.roofline import Rates
from ds_dip.data import DatasetReference
from ds_dip.files import check_writable
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model
from ds_dip.partition import make_partition, read_partition
from ds_dip.partition.chunks import PLACEMENTS
from ds_dip.partition.memory import Memory
from ds_dip.partition.methods import PROFILE, partition_by
from ds_dip.partition.offline import Inputs, partition_offline
from ds_dip.partition.sources import cost_source
from ds_dip.partition.space import SearchOptions
from ds_dip.partition.workload import Workload, batch_shape, compute_of, drawn
from ds_dip.planner.codec import Codec
from ds_dip.planner.ordering import schedulers
from ds_dip.runtime.exchange import broadcast

#: Sample batches that a search at start scores by.
BATCHES = 8
_OUTCOME: Codec[tuple[Partition | None, str]] = Codec(tuple[Partition | None, str], "the first rank's partition")


def partition_for(
    model: Model,
    config: Mapping[str, Any],
    ranks: int,
    *,
    method: str | None = None,
    training_data: DatasetReference | None = None,
) -> Partition:
    """The partition that a configuration's ``"dip"`` block asks for: its file, or a cut by its laps.

    ``method`` is DeepSpeed's ``partition_method``, which says how to cut where there is no file:
    ``uniform``, ``parameters``, ``type:REGEX``, or ``profile``, which searches on the first batches of
    ``training_data`` what ``dip.laps``, ``dip.sub_microbatch`` and ``dip.placement`` leave open (see
    docs/partition.md).
    The first rank searches, once for the same inputs, and all take its answer: every rank must call.
    Raises a ValueError where it does not fit the model or the number of pipeline ranks.
    """
    dip = read_config(config)
    if dip.partition is not None:
        if method is not None:
            raise ConfigError(
                f'partition_method is {method!r}, and "dip.partition" names a file, {dip.partition!r}; leave one of '
                "the two out"
            )
        partition = read_partition(dip.partition, model)
        if partition.ranks != ranks:
            raise ConfigError(
                f'"dip.partition" is {dip.partition!r}, made for {partition.ranks} pipeline ranks, and this run has '
                f"{ranks}; make a partition for {ranks} ranks or start {partition.ranks} a replica"
            )
        return partition
    if method is None:
        return make_partition(model, ranks, dict(dip.laps), dict(dip.sub_microbatch), placement=dip.placement)
    if method.lower() != PROFILE:
        return partition_by(method, model, ranks, dict(dip.laps), dict(dip.sub_microbatch), dip.placement)
    if training_data is None:
        raise ConfigError(
            f"partition_method is {method!r}, which scores partitions by batches of the run's data; give training_data"
        )
    return _agreed(lambda: _profiled(model, config, ranks, training_data))


def _profiled(model: Model, config: Mapping[str, Any], ranks: int, training_data: DatasetReference) -> Partition:
    """The partition that a search finds for a run's batches, costs and memory, kept for the next run."""
    dip = read_config(config)
    replicas = max(1, _world() // ranks)
    batch_size, microbatches = batch_shape(config, replicas)
    compute = compute_of(config)
    costs, costs_sha256 = cost_source(model, Rates(compute=compute), dip.table, dip.cost_rules)
    dataset = training_data.open()
    batches = drawn(dataset, batch_size, BATCHES, dip.planner.seed)
    inputs = Inputs(
        model=model,
        ranks=ranks,
        workload=Workload(batches, microbatches, replicas, dip.loss),
        costs_sha256=costs_sha256,
        schedule=dip.schedule,
        evaluations=dip.planner.scored(),
        memory=Memory(compute=compute, replicas=replicas, link_depth=dip.link_depth, limits=dip.capacity(ranks)),
        options=SearchOptions(
            laps=dict(dip.laps),
            sub_microbatch=dict(dip.sub_microbatch),
            placements=(dip.placement,) if "placement" in dip.model_fields_set else PLACEMENTS,
        ),
        strategies=dip.strategies,
    )
    path = _kept(f"partition-{inputs.sha256[:16]}.json")
    partition, kept = partition_offline(inputs, costs, *schedulers(dip.schedule, dip.planner.scored()), path)
    source = "a roofline" if dip.table is None else dip.table
    logger.info(f"partition by {source}: {_told(partition)}{f' (kept in {path})' if kept else ''}")
    return partition


def _told(partition: Partition) -> str:
    limits = dict(partition.sub_microbatch)
    told = []
    for name, limit in limits.items():
        chain = partition.of(name)
        layers = "+".join(str(chunk.stop - chunk.start) for chunk in chain)
        told.append(f"{name} K={chain[-1].segment + 1} B={limit or 'whole'} layers {layers}")
    return "; ".join(told)


def _kept(name: str) -> Path | None:
    """Where a search's outcome is kept for runs to come; None where nothing can be written."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ds_dip")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder / name)
    except OSError:
        return None
    return folder / name


def _world() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _agreed(make: Callable[[], Partition]) -> Partition:
    """What the first rank makes, on every rank; its error is a ConfigError on the others."""
    if _world() == 1:
        return make()
    outcome: tuple[Partition | None, str] = (None, "")
    failure: Exception | None = None
    if torch.distributed.get_rank() == 0:
        try:
            outcome = make(), ""
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for word of it
            failure, outcome = error, (None, str(error) or type(error).__name__)
    partition, sentence = broadcast(_OUTCOME, outcome)
    if failure is not None:
        raise failure
    if partition is None:
        raise ConfigError(sentence)
    return partition
