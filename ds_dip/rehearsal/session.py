"""What a rehearsal is made from, as its ranks are told it. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ds_dip.config import TimeoutConfig
from ds_dip.costs.model import CostModel
from ds_dip.costs.roofline import Rates
from ds_dip.costs.rules import FORMAT
from ds_dip.files import write_json
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model
from ds_dip.planning import build_problem
from ds_dip.planning.batch import Batch
from ds_dip.rehearsal.costs import FACTORY

#: Seconds that a mean stage should last at least, and for every rank that a core carries: a stage and its messages take
#: about half a millisecond of the engine's own, and 1.2 ms of a core that ranks and their planner share.
STAGE_S, STAGE_S_A_RANK = 0.04, 0.016
#: Seconds that ranks which share few cores may take to start.
START_S = 300.0
#: Ranks wait on one machine and need no accelerator.
VARIABLES = {"DS_ACCELERATOR": "cpu"}


def cost_options(
    model: Path, partition: Path, rates: Rates, table: Path | None, rules: Path | None, dilation: float
) -> dict[str, Any]:
    """The options of ``rehearsal.costs.emulated``, as JSON can hold them."""
    return {
        "real": str(model.resolve()),
        "partition": str(partition.resolve()),
        "rates": asdict(rates),
        "table": None if table is None else str(table.resolve()),
        "rules": None if rules is None else str(rules.resolve()),
        "dilation": dilation,
    }


def stage_seconds(
    batch: Batch, model: Model, partition: Partition, costs: CostModel, compute: str
) -> tuple[float, float]:
    """(mean, sum) of the seconds of a batch's stages."""
    tasks = build_problem(batch, model, partition, costs, compute=compute).tasks
    work = sum(task.duration for task in tasks)
    return work / len(tasks), work


def dilation_for(stage: float, ranks: int) -> float:
    """How many times as slow as the device a rehearsal should be here (see ``STAGE_S``), at least 1."""
    wanted = max(STAGE_S, STAGE_S_A_RANK * ranks / (os.cpu_count() or 1))
    return max(1.0, float(f"{wanted / stage:.2g}")) if stage > 0 else 1.0


def configuration(
    folder: Path,
    block: Mapping[str, Any],
    options: Mapping[str, Any],
    batch_size: int,
    microbatches: int,
    work: float = 0.0,
) -> dict[str, Any]:
    """The DeepSpeed JSON of the ranks; writes the cost rules that it names into ``folder``.

    ``block`` is the run's own ``"dip"`` block, of which everything holds that does not say where layers live or what
    they cost. Ranks train in bf16 where the run does, else in fp32: processors have no fp16. A batch's stages take
    ``work`` seconds altogether, one after the other, as they will be waited for: ranks wait for each other as long as
    that and more.
    """
    path = folder / f"rules-{len(list(folder.iterdir()))}.json"
    write_json(path, {"format": FORMAT, "version": 1, "factory": FACTORY, "options": dict(options)})
    left = ("partition", "table", "laps", "sub_microbatch", "placement", "checked", "trace", "record", "replay")
    kept = {name: value for name, value in block.items() if name not in left}
    patience, own = TimeoutConfig(), kept.get("timeouts", {})
    timeouts = {
        "rank_s": max(own.get("rank_s", patience.rank_s), patience.rank_s + 4.0 * work),
        "start_s": max(own.get("start_s", patience.start_s), START_S),
    }
    half = {"bf16": {"enabled": True}} if options["rates"]["compute"] == "bfloat16" else {}
    return {
        **half,
        "train_batch_size": batch_size,
        "gradient_accumulation_steps": microbatches,
        "train_micro_batch_size_per_gpu": batch_size // microbatches,
        "steps_per_print": 1000000,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 1e-4}},
        "zero_optimization": {"stage": 1, "reduce_bucket_size": 1 << 16},
        "dip": {**kept, "cost_rules": str(path), "timeouts": {**own, **timeouts}},
    }
