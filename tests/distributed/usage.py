"""A rank of the usage test: what DeepSpeed's users rely on, and what its own pipeline engine gets wrong."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import deepspeed
import torch

from ds_dip.models.partition import Chunk, Partition
from ds_dip.runtime.engine import DIPEngine
from ds_dip.runtime.finite import NonFiniteError
from ds_dip.runtime.shutdown import shutdown
from tests.cases import Case, batches_of, random_case
from tests.distributed.gradients import reference_layers, settings
from tests.distributed.ranks import report
from tests.distributed.updates import RATE, engine_for, update, weights


def clipping(mode: str, seed: int) -> None:
    """One step of plain SGD: the weights move by the clipped gradient of the whole model."""
    case = random_case(seed, ranks=2, encoders=1, layers=6, frozen=(), tied=True)
    document = settings(case, mode, 1)
    document["optimizer"]["params"]["lr"] = RATE
    document["gradient_clipping"] = 0.05
    report(case="clipping", mode=mode, **update(engine_for(case, document), case, mode, 0.05))


def options(folder: str) -> None:
    """Everything on at once: breakdown, prints, monitor, communication log, scheduler, another batch size."""
    case = random_case(11, ranks=2, encoders=1, layers=6, frozen=())
    document = settings(case, "zero1", 1)
    document |= {
        "wall_clock_breakdown": True,
        "steps_per_print": 1,
        "csv_monitor": {"enabled": True, "output_path": folder, "job_name": "usage"},
        "comms_logger": {"enabled": True},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 4}},
    }
    engine = engine_for(case, document)
    rates = []
    for _ in range(3):
        engine.train_batch()
        rates.append(engine.get_lr()[0])
    engine.set_train_batch_size(6)
    engine.train_batch()
    files = sorted(path.name for path in Path(folder).rglob("*.csv"))
    report(case="options", rates=rates, samples=engine.global_samples, steps=engine.global_steps, files=files)


def resized() -> None:
    """After another batch size the update is still the gradient of the whole batch."""
    case = random_case(31, ranks=2, encoders=1, layers=6, frozen=(), tied=True)
    document = settings(case, "zero1", 1)
    document["optimizer"]["params"]["lr"] = RATE
    document["gradient_clipping"] = 0.05
    engine = engine_for(case, document)
    engine.set_train_batch_size(6)
    values = update(engine, case, "zero1", 0.05)
    refused = ""
    try:
        engine.set_train_batch_size(0)
    except ValueError as error:
        refused = str(error)
    report(case="resized", samples=engine.global_samples, refused=refused, **values)


def nonfinite(policy: str, where: str) -> None:
    """A NaN in the data of one sample: found before the step, which is left out or ends the run."""
    cases = (random_case(seed, ranks=2, encoders=1, layers=6, frozen=()) for seed in range(12, 40))
    case = next(case for case in cases if any(sample.modules["vision"] for sample in case.samples))
    document = settings(case, "zero1", 1)
    document["optimizer"]["params"]["lr"] = 1.0
    document["dip"]["nonfinite"] = policy
    engine = engine_for(case, document)
    load = case.dataset.load
    spoilt = next(sample.id for sample in case.samples if sample.modules["vision"])

    def poisoned(sample: str, fields: Any) -> Any:
        return {
            name: [a * float("nan") if name == where and sample == spoilt else a for a in arrays]
            for name, arrays in load(sample, fields).items()
        }

    case.dataset.load = poisoned
    before, error = weights(engine), ""
    try:
        engine.train_batch()
    except NonFiniteError as found:
        error = str(found)
    kept = all(torch.equal(a, b) for a, b in zip(before.values(), weights(engine).values(), strict=True))
    case.dataset.load = load
    moved = 0.0
    if policy == "skip":
        engine.train_batch()
        moved = max(float((a - b).abs().max()) for a, b in zip(before.values(), weights(engine).values(), strict=True))
    finite = all(bool(torch.isfinite(w).all()) for w in weights(engine).values())
    report(
        case="nonfinite",
        policy=policy,
        where=where,
        error=error,
        kept=kept,
        moved=moved,
        finite=finite,
        skipped=engine.skipped_steps,
    )


def frozen_rank() -> None:
    """A rank that holds nothing but a frozen encoder trains nothing, and the run goes on."""
    base = random_case(13, ranks=1, encoders=1, layers=4, frozen=("vision",))
    chunks = (Chunk("vision", 0, 0, 0, 0, 4), Chunk("language", 0, 0, 1, 0, 2), Chunk("language", 1, 1, 1, 2, 4))
    partition = Partition(2, chunks, (("vision", 2),))
    share = [(0, 1), (2,), (3, 4)]
    samples = [base.dataset.metadata(index) for index in range(5)]
    case = Case(base.toy, base.dataset, partition, batches_of(samples, [share], base.toy, partition), 13)
    errors, engines, before = [], [], gc.get_freeze_count()
    for mode in ("fp32", "zero1"):
        engine = engine_for(case, settings(case, mode, 1))
        engines.append(engine)
        loss = float(engine.train_batch())
        layers = reference_layers(case, mode)
        expected = float(case.toy.reference(case.dataset, case.samples, case.batches[0].loss_count, layers))
        errors.append(abs(loss - expected) / expected)
    kept, groups = gc.get_freeze_count() - before, [group for engine in engines for group in groups_of(engine)]
    shutdown(*engines)
    alive = sum(group() is not None for group in groups)
    report(case="frozen rank", errors=errors, kept=kept, left=gc.get_freeze_count(), groups=len(groups), alive=alive)


def groups_of(engine: DIPEngine) -> list[weakref.ref[Any]]:
    """The process groups that were made for an engine."""
    found = [value for owner in (engine, engine.grid) for value in vars(owner).values()]
    world = torch.distributed.group.WORLD
    return [weakref.ref(g) for g in found if isinstance(g, torch.distributed.ProcessGroup) and g is not world]


def main() -> None:
    deepspeed.init_distributed("gloo")
    for mode in ("fp32", "zero1", "bf16-accumulate"):
        clipping(mode, 21)
    for policy in ("stop", "skip"):
        for where in ("vision", "labels"):
            nonfinite(policy, where)
    options(sys.argv[1])
    resized()
    frozen_rank()


if __name__ == "__main__":
    main()
