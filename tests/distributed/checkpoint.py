"""A rank of the checkpoint tests: a list of jobs, each an engine that loads, trains, saves and tells what happened."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.pipe.module import TiedLayerSpec
from torch import nn

import ds_dip
from ds_dip.config import read_config
from ds_dip.costs.corrections import Corrections, Fit
from ds_dip.data import DatasetReference
from ds_dip.models import layer_factories, token_cross_entropy
from ds_dip.models.config import load_model
from ds_dip.partition import make_partition
from ds_dip.partition.checkpoint import CheckpointError
from ds_dip.planner import LeaderSource, Planner, PlannerSettings
from ds_dip.planner.adopted import Adoption
from ds_dip.runtime.initialize import make_engine
from ds_dip.runtime.module import DIPModule
from ds_dip.runtime.shutdown import shutdown
from tests.distributed.ranks import report
from tests.distributed.test_main_job import MODEL

BATCH = 8
#: Layers of the model, by module.
LAYERS = {"vision": 5, "language": 6}


class Shared(nn.Module):
    """One block at two places of the backbone, on two ranks."""

    def __init__(self, factory: Any) -> None:
        super().__init__()
        self.block = factory()

    def forward(self, x: Any, context: Any) -> Any:
        return self.block(x, context)


class Shifting(nn.Module):
    """Any layer, with a buffer that a checkpoint must carry."""

    def __init__(self, factory: Any, value: float) -> None:
        super().__init__()
        self.block = factory()
        self.register_buffer("seen", torch.full((2,), value))

    def forward(self, x: Any, context: Any) -> Any:
        return self.block(x, context)


def model_of(folder: Path, frozen: bool) -> Any:
    document = json.loads(json.dumps(MODEL))
    vision, language = document["modules"]
    vision.update(layers=3, frozen=frozen)
    language.update(layers=4)
    path = folder / f"model-{frozen}-{os.environ['RANK']}.json"
    path.write_text(json.dumps(document))
    return load_model(path)


def settings(mode: str, replicas: int, universal: bool, planner: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "train_batch_size": BATCH,
        "gradient_accumulation_steps": 4,
        "train_micro_batch_size_per_gpu": BATCH // 4 // replicas,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8, "warmup_max_lr": 0.003}},
        "gradient_clipping": 0.5,
        "steps_per_print": 1000000,
        "zero_optimization": {"stage": int(mode[-1])},
        "dip": {
            "deterministic": True,
            "timeouts": {"rank_s": 60.0, "plan_s": 120.0},
            "planner": {"enabled": planner, "deadline_s": 60.0},
        },
    }
    if mode.startswith("bf16"):
        document["bf16"] = {"enabled": True}
    if mode.startswith("bf16-accumulate"):
        document["bf16"]["immediate_grad_update"] = True
        document["data_types"] = {"grad_accum_dtype": "fp32"}
    if universal:
        document["checkpoint"] = {"load_universal": True}
    return document


def module_of(job: dict[str, Any], folder: Path) -> DIPModule:
    frozen, tied = job.get("frozen", False), job.get("tied", False)
    model = model_of(folder, frozen)
    partition = make_partition(
        model, job["ranks"], job.get("laps", {}), {"vision": 2}, parts=job.get("parts") and dict(job["parts"])
    )
    # Another seed gives other weights, so that what a load leaves out shows.
    factories: dict[str, list[Any]] = {k: list(v) for k, v in layer_factories(model, job.get("seed", 0)).items()}
    if frozen:
        block, value = factories["vision"][1], float(job.get("seed", 0))
        factories["vision"][1] = lambda: Shifting(block, value)
    if tied:
        shared = factories["language"][1]
        names = [name for name, _ in Shared(shared).named_parameters()]
        for index in (1, 4):
            factories["language"][index] = TiedLayerSpec("shared", Shared, shared, tied_weight_attr=names)
    return DIPModule(model, partition, factories, token_cross_entropy)


def engine_of(job: dict[str, Any], folder: Path) -> Any:
    module = module_of(job, folder)
    replicas = dist.get_world_size() // job["ranks"]
    document = settings(job["mode"], replicas, job.get("universal", False), job.get("planner", False))
    document["dip"]["deterministic"] = not job.get("measured", False)
    document["dip"]["planner"]["balanced"] = job.get("balanced", True)
    data = DatasetReference("ds_dip.data.digits:Digits", {"samples": 64, "merge": 4})
    if job.get("planner"):
        return ds_dip.initialize(model=module, training_data=data, config=document)[0]
    grid = module.mpu()
    plans = LeaderSource(
        Planner(
            PlannerSettings(
                model=module.model,
                partition=module.partition,
                dataset=data,
                batch_size=BATCH,
                replicas=replicas,
                replica=grid.get_data_parallel_rank(),
                microbatches=4,
                loss=read_config(document).loss,
            )
        ),
        correct=False,
    )
    return make_engine(module, document, DeepSpeedConfig(document, module.mpu()), plans, data.open())


def adopt(engine: Any, measured: bool) -> None:
    """Have costs adopted after the first steps; not ``measured``, each replica's plans tell lines of its own."""
    engine.adoption = Adoption(engine.module.model, engine.dip.planner.lead, first=1)
    if measured:
        return
    planned, replica = engine.plans.next, engine.grid.get_data_parallel_rank()

    def told(step: int) -> Any:
        factor = (40.0 if step < 5 else 0.05) + replica
        fits = (
            Fit("vision", "F", factor, 0.0),
            Fit("vision", "B", factor, 0.0),
            Fit("language", "F", 1.0, float(replica)),
        )
        return replace(planned(step), corrections=Corrections(fits=fits))

    engine.plans.next = told


def weights_of(engine: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in engine.module.state_dict().items()}


def run(job: dict[str, Any], folder: Path) -> Any:
    """One job: ``load`` (tag, or a list of tags that must be refused), then ``steps``, each a number or an action."""
    engine = engine_of(job, folder)
    dist.barrier()
    if job.get("adopts"):
        adopt(engine, job.get("measured", False))
    if job.get("older"):  # a checkpoint of a version that adopted nothing
        state = engine._rank_state
        engine._rank_state = lambda: {key: value for key, value in state().items() if key != "adopted"}
    out: dict[str, Any] = {"name": job["name"], "losses": [], "errors": [], "assigned": []}
    for action in job["actions"]:
        before = weights_of(engine)
        kind, value = action[0], action[1]
        if kind == "train":
            for _ in range(value):
                out["losses"].append(float(engine.train_batch()))
                out["assigned"].append([engine.plan.batch.assigned, len(engine.plan.batch.adopted)])
        elif kind == "save":
            engine.save_checkpoint(folder / job["name"], value, {"note": [job["name"], engine.global_steps]})
        elif kind == "load":
            path, state = engine.load_checkpoint(folder / value, *action[2:])
            out["loaded"] = [path and str(path), state and state["note"], engine.global_steps]
        elif kind == "damage":  # cut off the end of a file
            dist.barrier()
            if dist.get_rank() == 0:
                os.truncate(folder / value, (folder / value).stat().st_size - 7)
            dist.barrier()
        elif kind == "dump":
            torch.save(weights_of(engine), folder / f"{value}-{dist.get_rank()}.pt")
        else:
            refused = fail(engine, folder, job, *action)
            unchanged = all(torch.equal(before[name], tensor) for name, tensor in weights_of(engine).items())
            out["errors"].append([kind, refused, unchanged, engine.global_steps])
    report(**out, adopted=[[version.since, repr(version.fits)] for version in engine.adoption.adopted.versions])
    return engine


def fail(engine: Any, folder: Path, job: dict[str, Any], kind: str, value: Any, tag: str | None = None) -> str:
    """Try what must not work; the sentence."""
    save = torch.save
    here = folder / job["name"]
    try:
        if kind == "refused":
            engine.load_checkpoint(folder / value, tag)
        elif kind == "unpicklable":
            engine.save_checkpoint(here, value, {"note": lambda: None})
        elif kind == "unwritable":  # on the second rank, in the middle
            if dist.get_rank() == 1:
                torch.save = no_space(save)
            engine.save_checkpoint(here, value)
        elif kind == "full":  # a real small disk
            if dist.get_rank() == 0:
                fill(Path(value))
            dist.barrier()
            engine.save_checkpoint(value, "second")
        elif kind == "killed":
            if dist.get_rank() == 1:
                torch.save = lambda *_, **__: os._exit(9)
            engine.save_checkpoint(here, value)
    except CheckpointError as error:
        if kind == "killed":
            raise
        return str(error)
    finally:
        torch.save = save
    return ""


def no_space(save: Any) -> Any:
    calls = []

    def write(*arguments: Any, **options: Any) -> None:
        calls.append(0)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(*arguments, **options)

    return write


def fill(folder: Path) -> None:
    """Leave a few kilobytes of a small disk."""
    disk = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes(max(0, disk.f_bavail * disk.f_frsize - 20_000)))


def main() -> None:
    folder = Path(sys.argv[1])
    jobs = json.loads(Path(sys.argv[2]).read_text())
    deepspeed.init_distributed("gloo")
    engine = None
    for job in jobs:
        engine = run(job, folder)
        if job is not jobs[-1]:
            engine.close()
    assert engine is not None
    shutdown(engine)


if __name__ == "__main__":
    main()
