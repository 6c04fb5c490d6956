"""A rank of the test of checkpoints: models of transformers go on from a step, also under another partition."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
from deepspeed import comm as dist
from peft import LoraConfig

import ds_dip
from ds_dip.models import from_transformers
from ds_dip.runtime.pretrained import save_pretrained
from ds_dip.runtime.shutdown import shutdown
from ds_dip.runtime.universal import convert
from tests.distributed.ranks import report


def config(case: dict[str, Any], laps: int, universal: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_print": 1000000,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 0.01}},
        "zero_optimization": {"stage": case["stage"]},
        "dip": {
            "deterministic": True,
            "timeouts": {"rank_s": 60.0},
            "planner": {"enabled": False},
            "laps": {"language": laps},
        },
    }
    if universal:
        document["checkpoint"] = {"load_universal": True}
    return document


def engine_of(case: dict[str, Any], folder: Path, *, seed: int, laps: int = 1, universal: bool = False) -> Any:
    """(the engine, what was split); another seed gives other weights to what the folder has not."""
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"]) if case["lora"] else None
    pretrained = from_transformers(folder / case["family"], frozen=case["frozen"], lora=lora, seed=seed)
    document = ds_dip.load_config(config(case, laps, universal))
    partition = ds_dip.partition_for(pretrained.model, document, int(os.environ["WORLD_SIZE"]))
    module = ds_dip.DIPModule(pretrained.model, partition, pretrained.layers, pretrained.loss)
    names = [own.name for own in pretrained.model.modules]
    data = ds_dip.DatasetReference("tests.hf_models:dataset", {"family": case["family"], "count": 12, "names": names})
    return ds_dip.initialize(model=module, config=document, training_data=data)[0], pretrained


def steps(engine: Any, count: int) -> list[float]:
    return [float(engine.train_batch()) for _ in range(count)]


def run(case: dict[str, Any], folder: Path) -> Any:
    saved = folder / f"checkpoints-{case['name']}"
    if int(os.environ["WORLD_SIZE"]) == 1:
        engine, _ = engine_of(case, folder, seed=2, universal=True)
        engine.load_checkpoint(saved)
        report(name=case["name"], universal=steps(engine, 2))
        engine.close()
        return engine
    engine, pretrained = engine_of(case, folder, seed=0)
    before = steps(engine, 2)
    engine.save_checkpoint(saved)
    after = steps(engine, 2)
    save_pretrained(engine.module, pretrained, folder / f"whole-{case['name']}")
    engine.close()
    engine, pretrained = engine_of(case, folder, seed=1)
    engine.load_checkpoint(saved)
    resumed = steps(engine, 2)
    save_pretrained(engine.module, pretrained, folder / f"resumed-{case['name']}")
    engine.close()
    if dist.get_rank() == 0:
        convert(saved / "global_step2", saved / "universal")
    dist.barrier()
    engine, _ = engine_of(case, folder, seed=2, laps=2, universal=True)
    engine.load_checkpoint(saved)
    report(name=case["name"], before=before, after=after, resumed=resumed, universal=steps(engine, 2))
    engine.close()
    return engine


def main() -> None:
    deepspeed.init_distributed("gloo")
    folder = Path(sys.argv[1])
    for case in json.loads((folder / "cases.json").read_text()):
        engine = run(case, folder)
    shutdown(engine)


if __name__ == "__main__":
    main()
