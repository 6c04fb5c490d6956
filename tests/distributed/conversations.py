"""A rank of the conversations' test: real pictures in packs, trained on and evaluated by two ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch

import ds_dip
from ds_dip.data import DatasetReference
from ds_dip.models.config import load_model
from tests.distributed.evaluation import alone
from tests.distributed.ranks import report
from tests.media_cases import DEMO

CONFIG: dict[str, Any] = {
    "train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_print": 100,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "dip": {"checked": True, "planner": {"enabled": False}, "timeouts": {"rank_s": 60.0}},
}


def reference(folder: Path, **options: Any) -> DatasetReference:
    inner = {
        "files": [str(DEMO / "mllm_demo.json")],
        "processor": {"model": str(folder / "model.json")},
        "index": str(folder / "index"),
    }
    packed = {"factory": "ds_dip.data.conversations:Conversations", "options": inner | options}
    return DatasetReference("ds_dip.data.packed:Packed", {"dataset": packed, "length": 420})


def engine_of(folder: Path, data: DatasetReference) -> Any:
    model = load_model(folder / "model.json")
    module = ds_dip.DIPModule(
        model, ds_dip.partition_for(model, CONFIG, 2), ds_dip.layer_factories(model, 0), ds_dip.token_cross_entropy
    )
    return ds_dip.initialize(model=module, training_data=data, config=CONFIG)[0]


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    deepspeed.init_distributed()
    try:
        engine_of(folder, reference(folder, **({"problems": "skip"} if rank else {})))
    except ValueError as error:
        report(refused=str(error))
    data = reference(folder)
    with engine_of(folder, data) as engine:
        dataset = data.open()
        samples = [dataset.metadata(index) for index in range(len(dataset))]
        with torch.no_grad():
            expected, rows = alone(engine.module.model, dataset, samples)
        loss, logits = engine.eval_batch(samples, return_logits=True)
        apart = max((float((logits[key] - rows[key]).abs().max()) for key in logits), default=0.0)
        losses = [float(engine.train_batch()) for _ in range(8)]
        report(
            loss=float(loss), expected=expected, apart=apart, losses=losses, loading=engine.loading_seconds,
            packs=[len(sample.modules["language"]) for sample in samples],
        )  # fmt: skip


if __name__ == "__main__":
    main()
