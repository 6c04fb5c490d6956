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
from ds_dip.benchmarks.described import widened
from ds_dip.data.digits import sizes_for
from ds_dip.planning import loads_of
from ds_dip.ranks import settings, tell

#: Parts of the default data, by name (most images of a sample, share of the samples): half of them are short, few are
#: long, as where questions about one image are mixed with documents of many.
MIX = {"one": (1, 0.5), "some": (4, 0.3), "many": (12, 0.2)}
NAMES = ("balanced", "in turn")


@dataclass(frozen=True, slots=True)
class Balanced:
    """The quickstart's description and DeepSpeed JSON on ``replicas`` pipelines of ``ranks`` ranks each.

    The model is made ``wide`` times as wide, its images cut into patches of ``patch`` pixels a side. A replica has
    ``microbatches`` of ``samples`` samples in the mean. ``images`` are the most images a sample and the share of
    samples, of every part of the data.
    """

    model: str
    config: str
    ranks: int = 1
    replicas: int = 2
    wide: int = 4
    patch: int | None = 1
    samples: int = 4
    microbatches: int = 2
    blocks: int = 10
    iterations: int = 4
    images: list[tuple[int, float]] = field(default_factory=lambda: list(MIX.values()))

    @property
    def batch(self) -> int:
        """Samples of a global batch."""
        return self.samples * self.microbatches * self.replicas


def make_engines(s: Balanced) -> dict[str, Any]:
    """Two engines alike, with the same weights and global batches; one takes samples as they come."""
    model, engines = widened(s.model, s.wide, s.patch), {}
    drawn = sizes_for(model)
    for name in NAMES:
        config = copy.deepcopy(ds_dip.load_config(s.config))
        config |= {"train_batch_size": s.batch, "train_micro_batch_size_per_gpu": s.samples}
        config["gradient_accumulation_steps"] = s.microbatches
        config["dip"] = {**config.get("dip", {}), "trace": {"every": 0}}
        config["dip"]["planner"] = {**config["dip"].get("planner", {}), "balanced": name == NAMES[0]}
        module = ds_dip.DIPModule(
            model,
            ds_dip.partition_for(model, config, s.ranks),
            ds_dip.layer_factories(model),
            ds_dip.token_cross_entropy,
        )
        samples = (s.blocks + 2) * (s.iterations + 2) * s.batch
        parts = {
            str(images): {
                "factory": "ds_dip.data.digits:Digits",
                "options": {"samples": samples, "images": images, **drawn},
                "weight": weight,
            }
            for images, weight in s.images
        }
        reference = ds_dip.DatasetReference("ds_dip.data.mixture:Mixture", {"parts": parts})
        engines[name], *_ = ds_dip.initialize(model=module, training_data=reference, config=config)
    return engines


def unevenness(engine: Any, s: Balanced) -> tuple[float, float]:
    """How much more than the mean replica the slowest one has: means of the next steps.

    By its plan, whose costs are corrected by what was measured; and by what its samples are said to add, by which they
    are balanced.
    """
    leads = engine.grid.get_stage_id() == 0
    load = loads_of(engine.module.model, engine.plans.costs, s.samples) if leads else None
    found = []
    for _ in range(s.iterations):
        engine.train_batch()
        own = torch.zeros(2, dtype=torch.float64)
        if load is not None:
            samples = [sample for microbatch in engine.plan.batch.microbatches for sample in microbatch.samples]
            own[:] = torch.tensor([engine.plan.makespan, fsum(sum(load(sample).seconds) for sample in samples)])
        rows = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, own)
        every = torch.stack(rows)
        found.append(every.max(dim=0).values * s.replicas / every.sum(dim=0) - 1)
    planned, loaded = torch.stack(found).mean(dim=0).tolist()
    return planned, loaded


def measure(s: Balanced) -> None:
    """Set up, compare losses, measure in turn, deliver."""
    engines = make_engines(s)
    losses = {name: [float(engine.train_batch()) for _ in range(2)] for name, engine in engines.items()}
    blocks = interleave({name: engine.train_batch for name, engine in engines.items()}, s.blocks, s.iterations)
    uneven = {name: unevenness(engine, s) for name, engine in engines.items()}
    document = {
        "settings": asdict(s),
        "machine": machine(),
        "losses": losses,
        "seconds": {name: spread(own) for name, own in blocks.seconds.items()},
        "cpu_seconds": {name: spread(own) for name, own in blocks.cpu.items()},
        "busiest_seconds": {name: spread(own) for name, own in blocks.busiest.items()},
        "in_turn_over_balanced": ratios(blocks.seconds[NAMES[1]], blocks.seconds[NAMES[0]]),
        "busiest_in_turn_over_balanced": ratios(blocks.busiest[NAMES[1]], blocks.busiest[NAMES[0]]),
        "slowest_replica": {name: planned for name, (planned, _) in uneven.items()},
        "heaviest_replica": {name: loaded for name, (_, loaded) in uneven.items()},
        "fallbacks": {name: sum(engine.plans.statistics().fallbacks.values()) for name, engine in engines.items()},
    }
    if dist.get_rank() == 0:
        tell(document)
    ds_dip.shutdown(*engines.values())


def main() -> None:
    """Run as one rank."""
    deepspeed.init_distributed()
    measure(Balanced(**settings()))


if __name__ == "__main__":
    main()
