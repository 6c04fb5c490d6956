"""A rank of the video test: a tiny diffusion transformer behind a frozen text encoder trains under the real engine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import ds_dip
from ds_dip.models import flow_matching_loss
from ds_dip.models.config import parse_model
from tests.distributed.ranks import ROOT, report

CONFIG = {
    "train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "steps_per_print": 1000000,
    "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 0.003}},
    "dip": {"sub_microbatch": {"text": 2}},
}
CLIPS = {"samples": 64, "clips": 3, "context": 512, "frame": 4, "numbers": 12, "vocabulary": 300}


def main() -> None:
    document = json.loads((ROOT / "model_configs" / "t2v_s.json").read_text())
    text, video = document["modules"]
    for module in (text, video):
        module |= {"layers": 3, "hidden": 24, "heads": 2, "kv_heads": 2, "ffn": 48}
    text |= {"hidden": 16, "vocabulary": 300}
    video |= {"channels": 3, "side": 2}
    model = parse_model(document)
    path = Path(os.environ["REPORT_FOLDER"], f"config-{os.environ['RANK']}.json")
    path.write_text(json.dumps(CONFIG))
    config = ds_dip.load_config(path)
    partition = ds_dip.partition_for(model, config, ranks=int(os.environ["WORLD_SIZE"]))
    module = ds_dip.DIPModule(model, partition, ds_dip.layer_factories(model), flow_matching_loss)
    data = ds_dip.DatasetReference("ds_dip.data.clips:PackedClips", CLIPS)
    engine, *_ = ds_dip.initialize(model=module, config=config, training_data=data)
    with engine:
        report(losses=[float(engine.train_batch()) for _ in range(6)])


if __name__ == "__main__":
    main()
