"""Where an engine's plans come from: the leader's planner, or what the leader publishes."""

from __future__ import annotations

import hashlib
from itertools import count

import torch
from deepspeed import comm as dist
from deepspeed.utils import logger
from torch.distributed import distributed_c10d

from ds_dip.config import ConfigError, DIPConfig
from ds_dip.costs.machine import device_name
from ds_dip.costs.roofline import Rates
from ds_dip.costs.rules import CostRules, read_rules
from ds_dip.costs.table import LatencyTable, read_table
from ds_dip.data import DatasetReference
from ds_dip.files import FileError
from ds_dip.planner import (
    FollowerSource,
    LeaderSource,
    Planner,
    PlannerClient,
    PlannerSettings,
    PlanSource,
    StoreChannel,
)
from ds_dip.planner.codec import Codec
from ds_dip.planner.recorder import Recorder
from ds_dip.planner.recording import Recording
from ds_dip.planner.replaying import ReplayingSource, check_recording
from ds_dip.runtime.exchange import gather
from ds_dip.runtime.module import DIPModule
from ds_dip.runtime.node import node_of

_engines = count()
_DIGESTS: Codec[tuple[str, ...]] = Codec(tuple[str, ...], "digests of costs")
_PROBLEM: Codec[str] = Codec(str, "problem of a recording")


def make_recorder(dip: DIPConfig, module: DIPModule) -> Recorder | None:
    """What records this rank's pipeline; None where nothing is recorded, and on ranks that lead no pipeline.

    Raises ConfigError, on every rank, where the run would be recorded into the folder that it replays.
    """
    grid, record = module.mpu(), dip.record
    if not record.every:
        return None
    try:
        recorder = Recorder(
            grid.get_data_parallel_rank(), record.every, record.keep, record.directory, logger.warning, dip.replay
        )
    except FileError as error:
        raise ConfigError(f'"dip.record.directory" cannot be used: {error}') from error
    return recorder if grid.get_stage_id() == 0 else None


def make_plans(
    dip: DIPConfig,
    module: DIPModule,
    dataset: DatasetReference,
    *,
    batch_size: int,
    microbatches: int,
    compute: str,
    recorder: Recorder | None = None,
) -> PlanSource:
    """The source of plans of this rank; the first rank of every pipeline leads it and starts its planner.

    ``batch_size`` is the samples of a global batch, ``microbatches`` the nominal number a replica
    and ``compute`` the name of the dtype the run trains in. ``recorder`` is told by what plans are made.
    Raises ConfigError, on every rank, for a recording to replay that is not of this run.
    """
    grid, partition = module.mpu(), module.partition
    replica = grid.get_data_parallel_rank()
    table, rules = _costs(dip, module, compute)
    node = node_of(module.topology(), dist.get_rank())
    settings = PlannerSettings(
        model=module.model,
        partition=partition,
        dataset=dataset,
        batch_size=batch_size,
        seed=dip.planner.seed,
        replicas=grid.get_data_parallel_world_size(),
        replica=replica,
        microbatches=microbatches,
        schedule=dip.schedule,
        loss=dip.loss,
        link_depth=dip.link_depth,
        memory_capacity=dip.capacity(partition.ranks),
        strategies=dip.strategies,
        rates=Rates(compute=compute),
        table=table,
        rules=rules,
        ahead=dip.planner.lead,
        evaluations=dip.planner.scored(node.spare and not dip.deterministic),
        workers=dip.planner.workers or (1 if dip.deterministic else node.workers),
        split=dip.split_backward,
        # A deterministic run's plans must not depend on a clock.
        paced=not dip.deterministic,
        adaptive=dip.planner.adaptive,
        balanced=dip.planner.balanced,
    )
    # The store that the process group was made with; torch has no public name for it.
    store = distributed_c10d._get_default_store()
    # All ranks make their engines in the same order, so the same number names the same engine everywhere.
    channel = StoreChannel(
        store, f"ds_dip/{next(_engines)}/{replica}", grid.stage_to_global(0), publish_s=dip.timeouts.plan_s
    )
    leads = grid.get_stage_id() == 0
    planner = Planner(settings) if leads else None
    if planner is not None and recorder is not None:
        recorder.begin(settings, len(planner.dataset))
    recording = None if dip.replay is None else _recording(dip.replay, planner)
    # A deterministic run waits for its plan as long as a start may take: what it runs must not depend on a clock.
    wait = dip.timeouts.start_s if dip.deterministic else dip.planner.deadline_s
    if planner is None:
        deadline = max(dip.timeouts.plan_s, dip.timeouts.start_s + wait)
        return FollowerSource(settings, channel, deadline_s=deadline)
    if recording is not None:
        return ReplayingSource(planner, recording, channel)
    client = None
    if dip.planner.enabled:
        client = PlannerClient(
            settings, restart_limit=dip.planner.restart_limit, nice=dip.planner.nice, planner=planner
        )
    return LeaderSource(
        planner,
        channel,
        client,
        deadline_s=wait,
        first_deadline_s=dip.timeouts.start_s,
        correct=not dip.deterministic,
    )


def _recording(folder: str, planner: Planner | None) -> Recording | None:
    """The recording that the leaders' plans are taken from, None on other ranks; every rank calls it.

    Raises ConfigError, the same on every rank, where a leader cannot use its own.
    """
    recording, problem = None, ""
    if planner is not None:
        try:
            recording = Recording(folder, planner.settings.replica)
            check_recording(recording, planner.settings, len(planner.dataset))
        except ValueError as error:
            problem = str(error)
    if found := next((text for text in gather(_PROBLEM, problem) if text), ""):
        raise ConfigError(f'"dip.replay" is {folder!r}, which cannot be repeated: {found}')
    return recording


def _costs(dip: DIPConfig, module: DIPModule, compute: str) -> tuple[LatencyTable | None, CostRules | None]:
    """The run's latency table and its rules; the log warns of a table of another machine, or one that is not complete.

    Raises ConfigError where ranks read different ones, or where the table is of another data type than the run's.
    """
    table = None if dip.table is None else read_table(dip.table)
    rules = None if dip.cost_rules is None else read_rules(dip.cost_rules, module.model)
    # Every replica's planner assigns the samples of the global batch for itself, and all must find the same.
    digests = gather(_DIGESTS, tuple(hashlib.sha256(repr(read).encode()).hexdigest() for read in (table, rules)))
    for place, (name, path) in enumerate((("table", dip.table), ("cost_rules", dip.cost_rules))):
        other = next((rank for rank, digest in enumerate(digests) if digest[place] != digests[0][place]), None)
        if other is not None:
            raise ConfigError(
                f'"dip.{name}" is {path!r}, and rank {other} reads another one than rank 0; give all nodes the same'
            )
    if table is not None and table.dtype != compute:
        raise ConfigError(
            f'"dip.table" is {dip.table!r}, made for {table.dtype}, and this run trains in {compute}; give a table '
            f"that ds-dip profile --dtype {compute} made"
        )
    warnings = () if table is None else (table.mismatch(device_name(), torch.get_num_threads()), table.gap)
    for warning in filter(None, warnings):
        logger.warning(warning)
    return table, rules
