"""A rank of the replay test: a run that is recorded, the same one by its recording, and runs that it is not of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist

import ds_dip
from ds_dip.config import ConfigError
from ds_dip.data import DatasetReference
from ds_dip.planner import PlanSourceError
from ds_dip.runtime.shutdown import shutdown
from tests.distributed.checkpoint import BATCH, module_of, settings
from tests.distributed.ranks import report

JOB = {"ranks": 2, "laps": {"language": 2}}
STEPS = 8


def engine_of(folder: Path, dip: dict[str, Any], *, batch: int = BATCH, samples: int = 64, seed: int = 0) -> Any:
    """An engine whose plans depend on clocks: its planner's process searches and is corrected by what is measured."""
    document = settings("fp32-1", 1, universal=False, planner=True)
    document |= {"train_batch_size": batch, "train_micro_batch_size_per_gpu": batch // 4}
    planner = {**document["dip"]["planner"], "seed": seed}
    document["dip"] |= {"deterministic": False, "planner": planner, **dip}
    data = DatasetReference("ds_dip.data.digits:Digits", {"samples": samples, "merge": 4})
    return ds_dip.initialize(model=module_of(JOB, folder), training_data=data, config=document)[0]


def train(engine: Any, steps: int) -> dict[str, Any]:
    """What a run came to: losses to the last bit, plans by hash, the sum of its weights' magnitudes."""
    losses, plans = [], []
    for _ in range(steps):
        losses.append(float(engine.train_batch()).hex())
        plans.append(engine.plan.hash)
    weights = torch.stack([p.detach().double().abs().sum() for p in engine.module.parameters()])
    return {"losses": losses, "plans": plans, "weights": float(weights.sum()).hex()}


def refused(folder: Path, recorded: Path, **changes: Any) -> None:
    """Start a run that the recording is not of; the sentence."""
    sentence = ""
    try:
        engine_of(folder, {"replay": str(recorded)}, **changes).close()
    except ConfigError as error:
        sentence = str(error)
    report(case="refused", changes=changes, sentence=sentence)


def main() -> None:
    folder = Path(sys.argv[1])
    deepspeed.init_distributed("gloo")
    recorded = folder / "recorded"
    engine = engine_of(folder, {"record": {"every": 1, "directory": str(recorded)}})
    before = train(engine, STEPS - 2)
    engine.save_checkpoint(folder / "checkpoint")
    after = train(engine, 2)
    engine.close()
    dist.barrier()
    report(case="recorded", before=before, after=after)
    for changes in ({"batch": 16}, {"samples": 72}, {"seed": 3}):
        refused(folder, recorded, **changes)
    engine = engine_of(folder, {"replay": str(recorded), "record": {"every": 1, "directory": str(folder / "again")}})
    values = {"before": train(engine, STEPS - 2), "after": train(engine, 2)}
    engine.load_checkpoint(folder / "checkpoint")
    values["resumed"] = train(engine, 2)
    statistics = engine.plans.statistics()
    past = ""
    try:
        engine.train_batch()
    except PlanSourceError as error:
        past = str(error)
    report(
        case="replayed",
        **values,
        past=past,
        planned=statistics.planned,
        fallbacks=sum(statistics.fallbacks.values()),
    )
    shutdown(engine)


if __name__ == "__main__":
    main()
