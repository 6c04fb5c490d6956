"""A model and a DeepSpeed JSON small enough for benchmarks in tests."""

from __future__ import annotations

import json
from pathlib import Path


def small_files(folder: Path) -> list[str]:
    """The quickstart with two narrow layers a module and eight samples a batch, as ``--model`` and ``--config``."""
    model = json.loads(Path("model_configs/quickstart.json").read_text())
    for module in model["modules"]:
        module |= {"layers": 2, "hidden": 16, "ffn": 32}
    config = json.loads(Path("launch/quickstart_ds_config.json").read_text())
    config |= {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    config["dip"]["laps"] = {"vision": 1, "language": 1}
    (folder / "model.json").write_text(json.dumps(model))
    (folder / "config.json").write_text(json.dumps(config))
    return ["--model", str(folder / "model.json"), "--config", str(folder / "config.json")]
