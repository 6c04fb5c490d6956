"""A rank of the tests of diffusion transformers: from their folders, and back to folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ds_dip
from ds_dip.models import from_diffusers
from ds_dip.runtime.pretrained import save_pretrained
from tests.distributed.ranks import report

CONFIG = {
    "train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_print": 1000000,
    "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 0.003}},
    "dip": {"sub_microbatch": {"text": 1}, "planner": {"enabled": False}, "memory_strategies": ["selective"]},
}


def main() -> None:
    folder, ranks = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"])
    pretrained = from_diffusers(folder / "transformer", folder / "text_encoder")
    config = ds_dip.load_config(CONFIG)
    partition = ds_dip.partition_for(pretrained.model, config, ranks)
    module = ds_dip.DIPModule(pretrained.model, partition, pretrained.layers, pretrained.loss)
    data = ds_dip.DatasetReference(sys.argv[2], {"count": 4})
    engine, *_ = ds_dip.initialize(model=module, config=config, training_data=data)
    with engine:
        losses = [float(engine.train_batch()) for _ in range(8)]
        save_pretrained(engine.module, pretrained, folder / f"trained-{ranks}")
        report(losses=losses)


if __name__ == "__main__":
    main()
