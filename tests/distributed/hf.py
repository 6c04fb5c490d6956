"""A rank of the test of transformers' models: from a folder to the library's gradients, and back to a folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from peft import LoraConfig

import ds_dip
from ds_dip.models import from_transformers
from ds_dip.models.hf.split import Pretrained
from ds_dip.runtime.pretrained import save_pretrained
from ds_dip.runtime.shutdown import shutdown
from tests import hf_cases as cases
from tests import hf_models as models
from tests.distributed.gradients import full_gradient
from tests.distributed.ranks import report

#: Samples of one step, of every kind, and the names of their ids.
BATCH = 6


def config(case: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "train_batch_size": BATCH,
        "gradient_accumulation_steps": 2,
        "steps_per_print": 1000000,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": case.get("lr", 0.0)}},
        "gradient_clipping": 0.0,
        "dip": {"timeouts": {"rank_s": 60.0}, "planner": {"enabled": False}, **case.get("dip", {})},
        "pipeline": {"activation_checkpoint_interval": case.get("interval", 0)},
    }
    if case["mode"].startswith("bf16"):
        document |= {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
    return document


def lora_of(case: dict[str, Any]) -> LoraConfig | None:
    return LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"]) if case.get("lora") else None


def gradients(engine: Any, mode: str) -> tuple[float, dict[int, torch.Tensor]]:
    """A step's loss, and the gradients before the optimizer has them."""
    found: dict[int, torch.Tensor] = {}
    step = engine.optimizer.step

    def capture(*args: Any, **kwargs: Any) -> Any:
        for parameter in engine.module.parameters():
            if parameter.requires_grad:
                found[id(parameter)] = full_gradient(mode, parameter)
        return step(*args, **kwargs)

    engine.optimizer.step = capture
    try:
        return float(engine.train_batch()), found
    finally:
        engine.optimizer.step = step


def reference(folder: Path, case: dict[str, Any], ids: list[int]) -> tuple[float, Any]:
    """The library's own model, loaded by itself, on the same samples: its loss, and gradients in it."""
    cls = type(models.FAMILIES[case["family"]][0]())
    model = cls.from_pretrained(folder)
    sample = models.FAMILIES[case["family"]][1]
    return cases.library(model, [sample(index) for index in ids]), model


def run(case: dict[str, Any], folder: Path) -> Any:
    source = folder / case["family"]
    bf16 = case["mode"].startswith("bf16")
    pretrained = from_transformers(
        source, frozen=case.get("frozen", ()), lora=lora_of(case), dtype=torch.bfloat16 if bf16 else None
    )
    document = ds_dip.load_config(config(case))
    ranks = int(os.environ["WORLD_SIZE"])
    module = ds_dip.DIPModule(
        pretrained.model, ds_dip.partition_for(pretrained.model, document, ranks), pretrained.layers, pretrained.loss
    )
    names = [m.name for m in pretrained.model.modules]
    data = ds_dip.DatasetReference("tests.hf_models:dataset", {"family": case["family"], "count": 12, "names": names})
    engine, *_ = ds_dip.initialize(model=module, config=document, training_data=data)
    loss, found = gradients(engine, case["mode"])
    ids = [int(sample.id) for part in engine.plan.batch.microbatches for sample in part.samples]
    expected, model = reference(source, case, ids)
    worst, squares = compare(engine, pretrained, model, found)
    save_pretrained(engine.module, pretrained, folder / f"saved-{case['name']}")
    report(name=case["name"], loss=loss, expected=expected, worst=worst, norm=squares, weights=len(found))
    engine.close()
    return engine


def compare(engine: Any, pretrained: Pretrained, model: Any, found: dict[int, torch.Tensor]) -> tuple[float, float]:
    """The largest error of a tensor's gradient, and the norm of all errors over that of all gradients.

    Weights that peft added have none in the library's model; those that it left alone must have none here.
    """
    worst, squares = 0.0, [0.0, 0.0]
    for chunk in engine.module.local_chunks:
        for index, layer in engine.module.layers_of(chunk).items():
            built = cases.module_of(layer)
            names = pretrained.layers[chunk.module][index].names(built)
            for own, parameter in built.named_parameters():
                if not parameter.requires_grad or "lora_" in own:
                    continue
                wanted = model.get_parameter(names[own]).grad
                wanted = torch.zeros_like(parameter) if wanted is None else wanted
                got = found[id(parameter)].float()
                worst = max(worst, cases.distance(got, wanted, cases.sibling(model, names[own])))
                squares[0] += float((got - wanted).square().sum())
                squares[1] += float(wanted.square().sum())
    return worst, (squares[0] / squares[1]) ** 0.5 if squares[1] else 0.0


def main() -> None:
    deepspeed.init_distributed("gloo")
    folder = Path(sys.argv[1])
    for case in json.loads((folder / "cases.json").read_text()):
        engine = run(case, folder)
    shutdown(engine)


if __name__ == "__main__":
    main()
