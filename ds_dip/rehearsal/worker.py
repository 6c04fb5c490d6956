"""A rank of ``ds-dip rehearse``: trains on the twin, and rank 0 compares every batch with its simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from deepspeed import comm as dist

import ds_dip
from ds_dip.costs.model import CostModel
from ds_dip.data import DatasetReference
from ds_dip.models.config import load_model
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model
from ds_dip.partition.file import read_partition
from ds_dip.ranks import tell
from ds_dip.rehearsal.comparison import compare, emulated_timeline
from ds_dip.rehearsal.costs import Dilated, real_costs
from ds_dip.rehearsal.emulation import Emulation, begun, emulate
from ds_dip.rehearsal.twin import twin_of
from ds_dip.reporting.timeline import write_timeline

#: Batches that run before any is compared: the planner starts, and much happens for the first time.
WARM_UP = 2


def read(s: Mapping[str, Any]) -> tuple[Model, Partition, CostModel]:
    """(model, partition, costs, dilated) of a rank's settings (see ``commands``)."""
    options = {name: value for name, value in s["costs"].items() if name not in ("real", "dilation")}
    model = load_model(s["costs"]["real"])
    partition = read_partition(options["partition"], model)
    return model, partition, Dilated(real_costs(model, **options), s["costs"]["dilation"])


def started(s: Mapping[str, Any], config: Mapping[str, Any]) -> Emulation:
    """The emulation of a rank's settings under a configuration."""
    model, partition, costs = read(s)
    return emulate(twin_of(model, s["compute"]), partition, costs, config, DatasetReference.parse(s["dataset"]))


def lateness(emulation: Emulation) -> dict[str, float]:
    """Mean and largest seconds that messages came after they were due, of all ranks' posted ones; all ranks call it."""
    late = emulation.transports["posted"].late
    row = torch.tensor([sum(late), len(late), max(late, default=0.0)], dtype=torch.float64)
    rows = [torch.zeros_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    total, count = sum(float(r[0]) for r in rows), sum(float(r[1]) for r in rows)
    return {"mean": total / count if count else 0.0, "largest": max(float(r[2]) for r in rows)}


def rehearse(s: Mapping[str, Any]) -> None:
    """Run the batches; rank 0 tells each comparison and, at the end, what holds for all."""
    model, partition, costs = read(s)
    dilation = s["costs"]["dilation"]
    emulation = started(s, s["config"])
    engine, first = emulation.engine, dist.get_rank() == 0
    for number in range(WARM_UP + s["steps"]):
        if number == WARM_UP:
            emulation.transports["posted"].late.clear()
        engine.train_batch()
        if first and number >= WARM_UP:
            found = compare(engine.plan, engine.measured, engine.module.model, partition, costs, dilation)
            tell({"batch": {**asdict(found), "difference": found.difference}})
            if s["timelines"] is not None:
                timeline = emulated_timeline(engine.plan, engine.measured, model, partition, s["compute"], dilation)
                write_timeline(s["timelines"], timeline)
        if first:
            tell({"done": number + 1, "total": WARM_UP + s["steps"]})
        # What rank 0 does here belongs to no batch.
        dist.barrier()
    late = lateness(emulation)
    if first:
        statistics = engine.plans.statistics()
        end = {
            "late": {name: seconds / dilation for name, seconds in late.items()},
            "plan_seconds": statistics.plan_seconds,
            "lead": statistics.lead,
            "fallbacks": statistics.fallbacks,
            "reasons": list(statistics.reasons),
        }
        tell({"end": end})
    ds_dip.shutdown(engine)


def main() -> None:
    """Run as one rank."""
    rehearse(begun())


if __name__ == "__main__":
    main()
