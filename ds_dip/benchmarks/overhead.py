"""A rank of ``ds-dip bench overhead``: DIPEngine and DeepSpeed's PipelineEngine on uniform text, one 1F1B order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import deepspeed
from deepspeed import comm as dist
from torch import nn

import ds_dip
from ds_dip.benchmarks.blocks import Blocks, interleave, machine, ratios, spread
from ds_dip.benchmarks.contenders import microbatches_of
from ds_dip.benchmarks.stock import Feed, StaticModule, TextLayer, loss, stock_engine
from ds_dip.benchmarks.text import Text, near_empty_factories, text_model
from ds_dip.models import Model, Partition, layer_factories
from ds_dip.planning.cut import sizes_of
from ds_dip.ranks import settings, tell


@dataclass(frozen=True, slots=True)
class Overhead:
    """``layers`` decoder blocks of ``hidden`` on ``samples`` sequences of ``length`` tokens a microbatch.

    The planner plans ``lead`` batches ahead.
    """

    ranks: int = 2
    layers: int = 4
    hidden: int = 128
    length: int = 64
    samples: int = 4
    microbatches: int = 8
    blocks: int = 15
    iterations: int = 6
    lead: int = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """Both engines on the same model, weights and data; calling them trains on the next batch and gives the loss."""

    dip: Any
    stock: Any
    feed: Feed

    def contenders(self) -> dict[str, Callable[[], Any]]:
        """An iteration of each."""
        return {"dip": self.dip.train_batch, "stock": self.stock_iteration}

    def stock_iteration(self) -> Any:
        """One batch of DeepSpeed's engine."""
        first, last = self.stock.is_first_stage(), self.stock.is_last_stage()
        return self.stock.train_batch(self.feed.step(first, last, plain=True))


def configuration(s: Overhead) -> dict[str, Any]:
    """The DeepSpeed JSON of both engines."""
    return {
        "train_micro_batch_size_per_gpu": s.samples,
        "gradient_accumulation_steps": s.microbatches,
        "steps_per_print": 1000000,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 0.001}},
        "zero_optimization": {"stage": 1},
        "dip": {"schedule": "1f1b", "planner": {"lead": s.lead}},
    } | {"train_batch_size": s.samples * s.microbatches}


def make_pair(s: Overhead, model: Model, factories: Mapping[str, Sequence[Callable[[], nn.Module]]]) -> Pair:
    """Both engines, cut at the same layer."""
    config = configuration(s)
    partition: Partition = ds_dip.partition_for(model, config, s.ranks)
    steps = 3 + (s.blocks + 1) * (s.iterations + 1)
    reference = ds_dip.DatasetReference(
        "ds_dip.benchmarks.text:Text", {"samples": steps * config["train_batch_size"], "length": s.length}
    )
    module = ds_dip.DIPModule(model, partition, factories, ds_dip.token_cross_entropy)
    dip, *_ = ds_dip.initialize(model=module, training_data=reference, config=config)
    dataset = Text(steps * config["train_batch_size"], s.length)
    sizes = sizes_of([dataset.metadata(0)] * s.samples, model)["language"]
    layers = [TextLayer(make(), sizes, index == 0) for index, make in enumerate(factories["language"])]
    bounds = [0, *(chunk.stop for chunk in partition.of("language"))]
    stock = stock_engine(StaticModule(bounds, layers=layers, loss_fn=loss, num_stages=s.ranks), config)
    # Made ahead: DeepSpeed's engine must not be charged for them, as the planner's process makes the other's.
    batches = [microbatches_of(model, dataset, step, config, balanced=True) for step in range(steps)]
    return Pair(dip, stock, Feed(dataset, model, iter(batches)))


def summary(pair: Pair, blocks: Blocks, losses: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """What both took, block by block, and what they computed."""
    instructions = max(len(program.instructions) for program in pair.dip.plan.programs)
    iteration = spread(blocks.seconds["dip"])
    return {
        "ratio": ratios(blocks.seconds["dip"], blocks.seconds["stock"]),
        "cpu_ratio": ratios(blocks.cpu["dip"], blocks.cpu["stock"]),
        "seconds": {name: spread(values) for name, values in blocks.seconds.items()},
        "cpu_seconds": {name: spread(values) for name, values in blocks.cpu.items()},
        "losses": {"dip": [a for a, _ in losses], "stock": [b for _, b in losses]},
        "instructions": instructions,
        "us_per_instruction": 1e6 * iteration["median"] / instructions,
        "fallbacks": sum(pair.dip.plans.statistics().fallbacks.values()),
    }


def measure(s: Overhead) -> dict[str, Any]:
    """Both engines on real layers, then on near-empty ones."""
    model = text_model(s.layers, s.hidden)
    empty = text_model(s.layers, 16)
    pairs = {
        "real": make_pair(s, model, layer_factories(model)),
        "near_empty": make_pair(s, empty, near_empty_factories(empty)),
    }
    document: dict[str, Any] = {"settings": asdict(s), "machine": machine()}
    for name, pair in pairs.items():
        losses = [(float(pair.dip.train_batch()), float(pair.stock_iteration())) for _ in range(2)]
        blocks = interleave(pair.contenders(), s.blocks, s.iterations)
        document[name] = summary(pair, blocks, losses)
    if dist.get_rank() == 0:
        tell(document)
    ds_dip.shutdown(*(pair.dip for pair in pairs.values()))
    return document


def main() -> None:
    """Run as one rank."""
    deepspeed.init_distributed()
    measure(Overhead(**settings()))


if __name__ == "__main__":
    main()
