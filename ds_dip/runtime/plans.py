"""Where an engine's plans come from: the leader's planner, or what the leader publishes."""

from __future__ import annotations

from itertools import count

from torch.distributed import distributed_c10d

from ds_dip.config import DIPConfig
from ds_dip.costs.roofline import Rates
from ds_dip.data import DatasetReference
from ds_dip.planner import (
    FollowerSource,
    LeaderSource,
    Planner,
    PlannerClient,
    PlannerSettings,
    PlanSource,
    StoreChannel,
)
from ds_dip.runtime.module import DIPModule

_engines = count()


def make_plans(
    dip: DIPConfig, module: DIPModule, dataset: DatasetReference, *, batch_size: int, microbatches: int, compute: str
) -> PlanSource:
    """The source of plans of this rank; the first rank of every pipeline leads it and starts its planner.

    ``batch_size`` is the samples of a global batch, ``microbatches`` the nominal number a replica
    and ``compute`` the name of the dtype the run trains in.
    """
    grid, partition = module.mpu(), module.partition
    replica = grid.get_data_parallel_rank()
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
        rates=Rates(compute=compute),
        ahead=dip.planner.lead,
    )
    # The store that the process group was made with; torch has no public name for it.
    store = distributed_c10d._get_default_store()
    # All ranks make their engines in the same order, so the same number names the same engine everywhere.
    channel = StoreChannel(store, f"ds_dip/{next(_engines)}/{replica}", grid.stage_to_global(0))
    # A deterministic run waits for its plan as long as a start may take: what it runs must not depend on a clock.
    wait = dip.timeouts.start_s if dip.deterministic else dip.planner.deadline_s
    if grid.get_stage_id() != 0:
        deadline = max(dip.timeouts.plan_s, dip.timeouts.start_s + wait)
        return FollowerSource(settings, channel, deadline_s=deadline)
    planner = Planner(settings)
    client = None
    if dip.planner.enabled:
        client = PlannerClient(settings, restart_limit=dip.planner.restart_limit, nice=dip.planner.nice)
    return LeaderSource(
        planner,
        channel,
        client,
        deadline_s=wait,
        first_deadline_s=dip.timeouts.start_s,
        correct=not dip.deterministic,
    )
