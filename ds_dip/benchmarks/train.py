"""A rank of ``ds-dip bench train``: the same model, samples and weights under DIPEngine and under static pipelines."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.module import PipelineModule
from torch import Tensor, nn

import ds_dip
from ds_dip.benchmarks.blocks import Blocks, idle_share, interleave, machine, marking, ratios, spread
from ds_dip.benchmarks.contenders import microbatches_of
from ds_dip.benchmarks.padded import Padded
from ds_dip.benchmarks.stock import Feed, StaticModule, chain, loss, stock_engine
from ds_dip.data import Dataset, SampleMetadata
from ds_dip.models import Model, load_model
from ds_dip.partition import bottleneck_bounds
from ds_dip.ranks import settings, tell

#: Contenders of DeepSpeed's engine: (how it is cut, whether its microbatches are those of the plans).
STATIC = {
    "parameters": ("parameters", False),
    "best static": ("measured", False),
    "best static, balanced": ("measured", True),
}


#: Contenders of torch.distributed.pipelining: stages a rank, cut best by measured layer times.
PADDED = {"torch 1F1B, padded": 1, "torch interleaved 1F1B, padded": 2}


@dataclass(frozen=True, slots=True)
class Train:
    """The quickstart's description and DeepSpeed JSON, and how long to measure."""

    model: str
    config: str
    ranks: int = 2
    blocks: int = 10
    iterations: int = 4
    seed: int = 0


class Static:
    """DeepSpeed's engine with images of a microbatch before its text; calling it trains on the next batch."""

    def __init__(self, engine: Any, feed: Feed) -> None:
        self.engine, self._feed = engine, feed

    def __call__(self) -> Tensor:
        """Train on the next batch; the loss."""
        first, last = self.engine.is_first_stage(), self.engine.is_last_stage()
        trained: Tensor = self.engine.train_batch(self._feed.step(first, last, plain=False))
        return trained

    def bubble(self) -> float:
        """The share of ranks times span without a stage, over one batch measured for it."""
        before = self.engine._INSTRUCTION_MAP
        marks: list[tuple[float, float]] = []
        marked = {kind: marking(before[kind], marks) for kind in (schedule.ForwardPass, schedule.BackwardPass)}
        self.engine._INSTRUCTION_MAP = {**before, **marked}
        self()
        self.engine._INSTRUCTION_MAP = before
        return idle_share(marks)


def layer_times(model: Model, feed: Feed, seed: int, steps: int = 4) -> list[float]:
    """Median seconds of every layer's forward and backward over microbatches, the loss with the last layer.

    The first of the ``steps`` is not counted: what a layer does for the first time is not its time.
    """
    layers = chain(model, seed)
    seconds: list[list[float]] = [[] for _ in layers]
    microbatches = [
        (step, *microbatch) for step in range(steps) for microbatch in feed.step(first=True, last=True, plain=False)
    ]
    for step, inputs, labels in microbatches:
        state: Any = inputs
        for index, layer in enumerate(layers):
            if index:
                state = (state[0].detach().requires_grad_(), state[1])
            began = time.perf_counter()
            output = layer(state)
            if index == len(layers) - 1:
                torch.autograd.backward([loss(output, labels)])
            else:
                torch.autograd.backward([output[0]], [torch.ones_like(output[0])])
            if step:
                seconds[index].append(time.perf_counter() - began)
            state = output
    return [spread(values)["median"] for values in seconds]


def best_split(seconds: Sequence[float], ranks: int) -> list[int]:
    """The bounds of the split whose slowest stage is fastest, on rank 0's figures; the same on every rank."""
    bounds = torch.tensor(bottleneck_bounds(seconds, ranks))
    dist.broadcast(bounds, 0)
    return [int(bound) for bound in bounds.tolist()]


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most bytes of tensors that an iteration holds beyond what was there before, on the worst rank."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    held = most = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"])):
        held += int(event["args"]["Bytes"])
        most = max(most, held)
    worst = torch.tensor(most)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return int(worst)


@dataclass(frozen=True, slots=True)
class Contest:
    """All contenders by name, how the static ones were cut, and why some cannot run."""

    dip: Any
    static: dict[str, Static | Padded]
    bounds: dict[str, list[int]]
    layer_seconds: list[float]
    refused: dict[str, str]

    def contenders(self) -> dict[str, Callable[[], Any]]:
        """An iteration of each."""
        return {"dip": self.dip.train_batch, **self.static}

    def bubbles(self, batches: int = 5) -> dict[str, float]:
        """Median bubble of each over a few batches."""
        found: dict[str, list[float]] = {name: [] for name in self.contenders()}
        for _ in range(batches):
            self.dip.train_batch()
            found["dip"].append(self.dip.measured.bubble)
            for name, contender in self.static.items():
                found[name].append(contender.bubble())
        return {name: spread(values)["median"] for name, values in found.items()}


def make_contest(s: Train) -> Contest:
    """Every engine, with the same weights and the same samples step by step."""
    config = ds_dip.load_config(s.config)
    # ZeRO's default bucket of 5e8 elements, which nobody fills here, would be all that is seen of the memory.
    config["zero_optimization"] = {"reduce_bucket_size": 1 << 20, **config.get("zero_optimization", {})}
    model = load_model(s.model)
    partition = ds_dip.partition_for(model, config, s.ranks)
    factories = ds_dip.layer_factories(model, s.seed)
    module = ds_dip.DIPModule(model, partition, factories, ds_dip.token_cross_entropy)
    steps = 20 + (s.blocks + 1) * (s.iterations + 1)
    reference = ds_dip.DatasetReference(
        "ds_dip.data.digits:Digits", {"samples": max(steps, 20) * config["train_batch_size"]}
    )
    dip, *_ = ds_dip.initialize(model=module, training_data=reference, config=config)
    dataset: Dataset = reference.open()
    # Made ahead: DeepSpeed's engine must not be charged for them, as the planner's process makes the other's.
    batches = {
        balanced: [microbatches_of(model, dataset, step, config, balanced=balanced) for step in range(steps)]
        for balanced in (False, True)
    }

    def feed(balanced: bool) -> Feed:
        given: Iterator[list[list[SampleMetadata]]] = iter(batches[balanced])
        return Feed(dataset, model, given)

    seconds = layer_times(model, feed(False), s.seed)
    cuts = {"measured": best_split(seconds, s.ranks)}
    static: dict[str, Static | Padded] = {}
    bounds, refused = {}, {}
    for name, (cut, balanced) in STATIC.items():
        layers: list[nn.Module] = chain(model, s.seed)
        options = {"layers": layers, "loss_fn": loss, "num_stages": s.ranks, "dynamic_shape": True}
        stock = PipelineModule(**options) if cut == "parameters" else StaticModule(cuts[cut], **options)
        bounds[name] = [int(part) for part in stock.parts]
        static[name] = Static(stock_engine(stock, config), feed(balanced))
    for name, laps in PADDED.items():
        try:
            bounds[name] = best_split(seconds, s.ranks * laps)
            static[name] = Padded(model, feed(False), batches[False], bounds[name], config, s.seed)
        except ValueError as error:  # too few layers, or a number of microbatches that the schedule does not take
            refused[name] = str(error)
    return Contest(dip, static, bounds, seconds, refused)


def summary(s: Train, contest: Contest, blocks: Blocks, losses: dict[str, list[float]]) -> dict[str, Any]:
    """Seconds, ratios over DIPEngine, bubbles and memory of every contender."""
    bubbles = contest.bubbles()
    statistics = contest.dip.plans.statistics()
    return {
        "settings": asdict(s),
        "machine": machine(),
        "contenders": {
            name: {
                "seconds": spread(blocks.seconds[name]),
                "cpu_seconds": spread(blocks.cpu[name]),
                "over_dip": ratios(blocks.seconds[name], blocks.seconds["dip"]),
                "bubble": bubbles[name],
                "peak_bytes": peak_bytes(run),
                "bounds": contest.bounds.get(name),
                "losses": losses[name],
            }
            for name, run in contest.contenders().items()
        },
        "refused": contest.refused,
        "layer_seconds": contest.layer_seconds,
        "fallbacks": sum(statistics.fallbacks.values()),
        "predicted_iteration": contest.dip.plan.iteration,
        "predicted_makespan": contest.dip.plan.makespan,
        "lower_bound": contest.dip.plan.lower_bound,
        "schedule": contest.dip.plan.schedule,
        "predicted_peak_bytes": max(contest.dip.plan.peak_memory),
    }


def measure(s: Train) -> None:
    """Set up, compare losses, measure, deliver."""
    contest = make_contest(s)
    losses = {name: [float(run()) for _ in range(2)] for name, run in contest.contenders().items()}
    blocks = interleave(contest.contenders(), s.blocks, s.iterations)
    document = summary(s, contest, blocks, losses)
    if dist.get_rank() == 0:
        tell(document)
    ds_dip.shutdown(contest.dip)


def main() -> None:
    """Run as one rank."""
    deepspeed.init_distributed()
    measure(Train(**settings()))


if __name__ == "__main__":
    main()
