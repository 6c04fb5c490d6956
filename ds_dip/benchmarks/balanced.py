"""A rank of ``ds-dip bench balance --train``: the same engine twice, with samples balanced and with samples in turn."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field
from math import fsum
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist

import ds_dip
from ds_dip.benchmarks.blocks import interleave, machine, ratios, spread
from ds_dip.models import load_model
from ds_dip.ranks import settings, tell

#: Parts of the default data, by name (most images of a sample, share of the samples): half of them are short, few are
#: long, as where questions about one image are mixed with documents of many.
MIX = {"one": (1, 0.5), "some": (4, 0.3), "many": (12, 0.2)}
NAMES = ("balanced", "in turn")


@dataclass(frozen=True, slots=True)
class Balanced:
    """The quickstart's description and DeepSpeed JSON on ``replicas`` pipelines of ``ranks`` ranks each.

    ``images`` are the most images a sample and the share of samples, of every part of the data.
    """

    model: str
    config: str
    ranks: int = 1
    replicas: int = 2
    blocks: int = 10
    iterations: int = 4
    images: list[tuple[int, float]] = field(default_factory=lambda: list(MIX.values()))


def make_engines(s: Balanced) -> dict[str, Any]:
    """Two engines alike, with the same weights and global batches; one takes samples as they come."""
    model, engines = load_model(s.model), {}
    for name in NAMES:
        config = copy.deepcopy(ds_dip.load_config(s.config))
        batch = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * s.replicas
        config["train_batch_size"] = batch
        config["dip"] = {**config.get("dip", {}), "trace": {"every": 0}}
        config["dip"]["planner"] = {**config["dip"].get("planner", {}), "balanced": name == NAMES[0]}
        module = ds_dip.DIPModule(
            model,
            ds_dip.partition_for(model, config, s.ranks),
            ds_dip.layer_factories(model),
            ds_dip.token_cross_entropy,
        )
        samples = (s.blocks + 2) * (s.iterations + 2) * batch
        parts = {
            str(images): {
                "factory": "ds_dip.data.digits:Digits",
                "options": {"samples": samples, "images": images},
                "weight": weight,
            }
            for images, weight in s.images
        }
        reference = ds_dip.DatasetReference("ds_dip.data.mixture:Mixture", {"parts": parts})
        engines[name], *_ = ds_dip.initialize(model=module, training_data=reference, config=config)
    return engines


def unevenness(engine: Any, steps: int) -> float:
    """How much longer than the mean replica the slowest one is to take by its plan: the mean of the next steps."""
    found = []
    for _ in range(steps):
        engine.train_batch()
        own = torch.tensor([engine.plan.makespan], dtype=torch.float64)
        rows = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, own)
        makespans = [float(row[0]) for row in rows]
        found.append(max(makespans) * len(makespans) / fsum(makespans) - 1)
    return fsum(found) / len(found)


def measure(s: Balanced) -> None:
    """Set up, compare losses, measure in turn, deliver."""
    engines = make_engines(s)
    losses = {name: [float(engine.train_batch()) for _ in range(2)] for name, engine in engines.items()}
    blocks = interleave({name: engine.train_batch for name, engine in engines.items()}, s.blocks, s.iterations)
    document = {
        "settings": asdict(s),
        "machine": machine(),
        "losses": losses,
        "seconds": {name: spread(own) for name, own in blocks.seconds.items()},
        "cpu_seconds": {name: spread(own) for name, own in blocks.cpu.items()},
        "in_turn_over_balanced": ratios(blocks.seconds[NAMES[1]], blocks.seconds[NAMES[0]]),
        "slowest_replica": {name: unevenness(engine, s.iterations) for name, engine in engines.items()},
        "fallbacks": {name: sum(engine.plans.statistics().fallbacks.values()) for name, engine in engines.items()},
    }
    if dist.get_rank() == 0:
        tell(document)
    first, last = engines.values()
    first.close()
    ds_dip.shutdown(last)


def main() -> None:
    """Run as one rank."""
    deepspeed.init_distributed()
    measure(Balanced(**settings()))


if __name__ == "__main__":
    main()
