"""A rank of ``ds-dip bench split``: DIPEngine with whole and with split backwards, on the same weights and samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import deepspeed
from deepspeed import comm as dist

import ds_dip
from ds_dip.benchmarks.blocks import interleave, machine, ratios, spread
from ds_dip.benchmarks.described import widened
from ds_dip.benchmarks.train import peak_bytes
from ds_dip.models import Model
from ds_dip.ranks import settings, tell
from ds_dip.runtime.clock import Interval


@dataclass(frozen=True, slots=True)
class Split:
    """The description of a model, made ``wide`` times as wide, the DeepSpeed JSON, and how long to measure.

    ``memory_gb`` is for activations on every rank, in 10^9 bytes; it and ``microbatches`` are what the JSON says where
    they are None. ``overhead`` is the share by which the planner takes a split backward to be longer.
    """

    model: str
    config: str
    ranks: int = 2
    wide: int = 1
    memory_gb: float | None = None
    microbatches: int | None = None
    overhead: float = 0.05
    blocks: int = 10
    iterations: int = 3
    seed: int = 0


class Engine:
    """A DIPEngine; calling it trains on the next batch and gives the loss."""

    def __init__(self, s: Split, model: Model, split: bool) -> None:
        config = ds_dip.load_config(s.config)
        config["dip"] = config.get("dip", {}) | {
            "split_backward": s.overhead if split else None,
            # Alike for both: plans that split choose among no strategies.
            "memory_strategies": ["none"],
        }
        if s.memory_gb is not None:
            config["dip"]["memory_gb"] = s.memory_gb
        if s.microbatches is not None:
            config.pop("train_micro_batch_size_per_gpu", None)
            config["gradient_accumulation_steps"] = s.microbatches
        # ZeRO's default bucket of 5e8 elements would be all that is seen of the memory.
        config["zero_optimization"] = {"reduce_bucket_size": 1 << 20, **config.get("zero_optimization", {})}
        samples = (6 + (s.blocks + 1) * (s.iterations + 1)) * config["train_batch_size"]
        module = ds_dip.DIPModule(
            model,
            ds_dip.partition_for(model, config, s.ranks),
            ds_dip.layer_factories(model, s.seed),
            ds_dip.token_cross_entropy,
        )
        reference = ds_dip.DatasetReference("ds_dip.data.digits:Digits", {"samples": samples})
        self.engine, *_ = ds_dip.initialize(model=module, training_data=reference, config=config)
        self.stages: list[Interval] = []
        #: Per batch: predicted and measured seconds of the stages' span, busy seconds of all ranks, stages put off.
        self.batches: list[tuple[float, float, float, int]] = []

    def __call__(self) -> Any:
        """Train on the next batch."""
        loss = self.engine.train_batch()
        plan, measured = self.engine.plan, self.engine.measured
        assert plan is not None
        assert measured is not None
        self.stages = [interval for rank in measured.stages for interval in rank]
        self.batches.append(
            (
                plan.makespan,
                measured.executed,
                sum(interval.end - interval.start for interval in self.stages),
                sum(interval.stage.kind == "W" for interval in self.stages),
            )
        )
        return loss


def measure(s: Split) -> None:
    """Both engines, their first losses, then blocks of each in turn."""
    model = widened(s.model, s.wide)
    engines = {"whole": Engine(s, model, split=False), "split": Engine(s, model, split=True)}
    losses = {name: [float(engine()) for _ in range(2)] for name, engine in engines.items()}
    blocks = interleave(engines, s.blocks, s.iterations)
    whole, split = ([*zip(*engine.batches[2:], strict=True)] for engine in engines.values())
    document = {
        "settings": asdict(s),
        "machine": machine(),
        "losses": losses,
        "seconds": {name: spread(values) for name, values in blocks.seconds.items()},
        "whole_over_split": ratios(blocks.seconds["whole"], blocks.seconds["split"]),
        # Batch by batch, on the same samples.
        "predicted": ratios(whole[0], split[0]),
        "span": ratios(whole[1], split[1]),
        "busy": ratios(split[2], whole[2]),
        "put_off": spread(split[3]),
        "backwards": sum(interval.stage.kind == "B" for interval in engines["split"].stages),
        "peak_bytes": {name: peak_bytes(engine) for name, engine in engines.items()},
        "fallbacks": sum(sum(e.engine.plans.statistics().fallbacks.values()) for e in engines.values()),
    }
    if dist.get_rank() == 0:
        tell(document)
    ds_dip.shutdown(*(engine.engine for engine in engines.values()))


def main() -> None:
    """Run as one rank."""
    deepspeed.init_distributed()
    measure(Split(**settings()))


if __name__ == "__main__":
    main()
