"""Ranks that fail: each case is a job of its own, whose ranks this process forks, so that torch is imported once.

``python -m tests.distributed.failures FOLDER CASE...`` runs the cases and leaves a JSON file a case in FOLDER.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from torch.distributed import distributed_c10d

import ds_dip
from ds_dip.data import DatasetReference
from ds_dip.models.config import load_model
from tests.distributed.forking import preload
from tests.distributed.jobs import Case, Jobs
from tests.distributed.test_main_job import MODEL

WORLD = 3
#: Seconds that a rank of these jobs waits for another one.
RANK_S = 4.0
DIGITS = DatasetReference("ds_dip.data.digits:Digits", {"samples": 64, "merge": 4})


def model_of(path: Path, vision: int = 4) -> Any:
    """The tiny model with an encoder of so many layers and a backbone of four."""
    document = json.loads(json.dumps(MODEL))
    for module, layers in zip(document["modules"], (vision, 4), strict=True):
        module["layers"] = layers
    path.write_text(json.dumps(document))
    return load_model(path)


def engine_of(
    folder: Path, fault: str = "", data: DatasetReference = DIGITS, extra: Any = None, ranks: int = 0, **dip: Any
) -> Any:
    """An engine on all ranks of the job, or on pipelines of so many ``ranks``; ``extra`` are keys beside ``dip``."""
    model = model_of(folder / f"model-{os.environ['RANK']}.json")
    config = {
        "train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "steps_per_print": 1000000,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "dip": {
            "timeouts": {"rank_s": RANK_S, "plan_s": RANK_S, "start_s": RANK_S},
            # Without a search the order of stages, and so which sample is loaded first, depends on no clock.
            "planner": {"enabled": False, "deadline_s": 1.0, "evaluations": 0},
            **dip,
        },
        **(extra or {}),
    }
    deepspeed.init_distributed("gloo")
    module = ds_dip.DIPModule(
        model,
        ds_dip.partition_for(model, config, ranks or dist.get_world_size()),
        ds_dip.layer_factories(model, 0),
        ds_dip.token_cross_entropy,
    )
    if fault:
        data = DatasetReference("tests.distributed.datasets:Faulty", {**DIGITS.options, "fault": fault})
    return ds_dip.initialize(model=module, training_data=data, config=config)[0]


def train(engine: Any, steps: int = 3) -> None:
    with engine:
        for _ in range(steps):
            engine.train_batch()


def faulty(folder: Path, fault: str) -> None:
    """A dataset that is not what its metadata says."""
    train(engine_of(folder, fault))


def planned_ahead(folder: Path, fault: str) -> None:
    """The same, read by the planner's process first."""
    train(engine_of(folder, fault, planner={"enabled": True, "deadline_s": 3.0}))


def signalled(folder: Path, what: str) -> None:
    """``SIGKILL 1``: that rank gets that signal in the second step, in the middle of its program."""
    name, rank = what.split()
    engine = engine_of(folder)
    save_after(engine, folder)
    if engine.global_rank == int(rank):
        execute, calls = engine._executor.execute, []

        def wrapped(instruction: Any) -> None:
            calls.append(0)
            if len(calls) == 5:
                os.kill(os.getpid(), getattr(signal, name))
            execute(instruction)

        engine._executor.execute = wrapped
    train(engine)


def save_after(engine: Any, folder: Path) -> None:
    """Save after the first step."""
    engine.train_batch()
    engine.save_checkpoint(folder / "saved")


def in_a_collective(folder: Path, what: str) -> None:
    """A rank gets a signal where the others wait for it in a collective."""
    engine = engine_of(folder)
    engine.train_batch()
    name, rank = what.split()
    if engine.global_rank == int(rank):
        os.kill(os.getpid(), getattr(signal, name))
    with engine:
        dist_barrier(engine)


def dist_barrier(engine: Any) -> None:
    with engine.peers.told("the barrier of this test"):
        dist.barrier()


def gone_at_the_end(folder: Path, _: str) -> None:
    """A rank dies after its last step, when the others wait for it to end the run."""
    engine = engine_of(folder)
    engine.train_batch()
    if engine.global_rank == 1:
        os._exit(9)
    ds_dip.shutdown(engine)


def own_error(folder: Path, _: str) -> None:
    """The user's own script fails between two steps of one rank."""
    engine = engine_of(folder)
    with engine:
        engine.train_batch()
        if engine.global_rank == 1:
            raise ZeroDivisionError("the user's own arithmetic")
        engine.train_batch()


def load_without(folder: Path, _: str) -> None:
    """A rank dies before the others load a checkpoint."""
    engine = engine_of(folder)
    save_after(engine, folder)
    if engine.global_rank == 1:
        os._exit(9)
    with engine:
        engine.load_checkpoint(folder / "saved")


def deadlines(folder: Path, _: str) -> None:
    """The configured deadline reaches every process group."""
    engine = engine_of(folder)
    found = []
    for group in distributed_c10d._world.pg_map:
        backend = group._get_backend(torch.device("cpu"))
        found.append(backend.options._timeout.total_seconds())
    Path(folder, f"deadlines-{engine.global_rank}.json").write_text(json.dumps(found))
    with engine:
        engine.train_batch()


def few_layers(folder: Path, _: str) -> None:
    """A module with fewer layers than ranks."""
    ds_dip.partition_for(model_of(folder / f"model-{os.environ['RANK']}.json", vision=1), {}, 5)


CASES: dict[str, Case] = {
    **{fault: (faulty, fault) for fault in ("raises", "stops", "width", "sizes", "vocabulary", "dtype")},
    **{fault: (faulty, fault) for fault in ("ends", "metadata", "unsupervised")},
    "ends, planned ahead": (planned_ahead, "ends"),
    "killed": (signalled, "SIGKILL 1"),
    "first killed": (signalled, "SIGKILL 0"),
    "stopped": (signalled, "SIGSTOP 2"),
    "first stopped": (signalled, "SIGSTOP 0"),
    "killed in a collective": (in_a_collective, "SIGKILL 1"),
    "stopped in a collective": (in_a_collective, "SIGSTOP 1"),
    "gone at the end": (gone_at_the_end, ""),
    "own error": (own_error, ""),
    "load without a rank": (load_without, ""),
    "deadlines": (deadlines, ""),
    "few layers": (few_layers, ""),
}


def main() -> None:
    preload()
    jobs = Jobs(Path(sys.argv[1]))
    for name in sys.argv[2:] or CASES:
        jobs.run(name, CASES[name], WORLD)
    jobs.end()


if __name__ == "__main__":
    main()
