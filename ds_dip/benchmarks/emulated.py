"""A rank of ``ds-dip bench train --emulate``: schedules side by side on ranks that wait instead of computing.

DIPEngine runs a twin of the model (see ``ds_dip.rehearsal``), once per schedule. DeepSpeed's own engine runs a chain of
near-empty layers; its stages last as long as their layers, its blocking messages as long as what they stand for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.runtime import utils as ds_utils
from deepspeed.runtime.pipe import schedule
from torch import Tensor, nn

import ds_dip
from ds_dip.benchmarks.blocks import Blocks, idle_share, interleave, machine, ratios, spread
from ds_dip.benchmarks.contenders import microbatches_of
from ds_dip.benchmarks.stock import StaticModule, stock_engine
from ds_dip.costs.model import CostModel
from ds_dip.data import DatasetReference, SampleMetadata
from ds_dip.models.parameters import parameters
from ds_dip.models.spec import Model, Sizes
from ds_dip.partition import bottleneck_bounds
from ds_dip.planning.cut import sizes_of
from ds_dip.ranks import tell
from ds_dip.rehearsal.emulation import Emulation, begun
from ds_dip.rehearsal.pace import wait_until
from ds_dip.rehearsal.worker import read, started

#: Contenders of DeepSpeed's engine: (which cut, whether its microbatches are those of the plans). The last only where
#: microbatches hold more than one sample.
STATIC = {
    "DeepSpeed, default cut": ("parameters", False),
    "DeepSpeed, best static": ("fastest", False),
    "DeepSpeed, best static, balanced": ("fastest", True),
}
#: What a stage of DeepSpeed's engine does for a microbatch: compute lasts from its start, a message from its end, when
#: both ends have met.
_COMPUTE = {schedule.ForwardPass: "forward", schedule.BackwardPass: "backward"}
_MESSAGES = {
    schedule.RecvActivation: "from_before",
    schedule.SendActivation: "to_after",
    schedule.RecvGrad: "gradient_from_after",
    schedule.SendGrad: "gradient_to_before",
}


class _Link(nn.Module):
    """A layer of the chain; the first of a stage has a weight."""

    def __init__(self, weighted: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1)) if weighted else None

    def forward(self, x: Tensor) -> Tensor:
        """What came in, plus the weight."""
        return x if self.weight is None else x + self.weight


def _loss(output: Tensor, label: Tensor) -> Tensor:
    return (output - label).square().sum()


class Chain:
    """All layers of a model in one chain, what they take for a microbatch's instances, and how it may be cut."""

    def __init__(self, model: Model, costs: CostModel, compute: str) -> None:
        self._model, self._costs, self._compute = model, costs, compute
        self.layers = [(module.name, index) for module in model.modules for index in range(len(module.layers))]

    def parts(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """The layers ``start`` to ``stop`` as (module, start, stop)."""
        offset = 0
        for module in self._model.modules:
            first, last = max(start - offset, 0), min(stop - offset, len(module.layers))
            if first < last:
                yield module.name, first, last
            offset += len(module.layers)

    def seconds(self, start: int, stop: int, sizes: Mapping[str, Sizes]) -> tuple[float, float]:
        """(forward, backward) of consecutive layers; a module without an instance takes no time."""
        forward = backward = 0.0
        for name, first, last in self.parts(start, stop):
            if len(sizes[name]):
                forward += self._costs.forward(name, first, last, sizes[name])
                backward += self._costs.backward(name, first, last, sizes[name])
        return forward, backward

    def message(self, bound: int, sizes: Mapping[str, Sizes], *, gradient: bool) -> float:
        """Seconds of what crosses a bound: the outputs of the layer before it, or their gradients."""
        if bound in (0, len(self.layers)):
            return 0.0
        name, index = self.layers[bound - 1]
        specs = self._model.module(name).layers[index].output
        return self._costs.transfer(
            sum(spec.bytes(sizes[name], self._compute) for spec in specs if spec.differentiable or not gradient)
        )

    def cut(self, method: str, ranks: int, batches: Sequence[Sequence[Sequence[SampleMetadata]]]) -> list[int]:
        """Bounds: DeepSpeed's default, by parameters; or the split whose slowest part is fastest over all batches."""
        if method == "parameters":
            weights = [parameters(self._model.module(name).layers[index]) for name, index in self.layers]
            return [int(bound) for bound in ds_utils.partition_balanced(weights=weights, num_parts=ranks)]
        every = [sizes_of(samples, self._model) for step in batches for samples in step]
        seconds = [sum(sum(self.seconds(i, i + 1, sizes)) for sizes in every) for i in range(len(self.layers))]
        return [int(bound) for bound in bottleneck_bounds(seconds, ranks)]


class EmulatedStatic:
    """DeepSpeed's engine on the chain, cut at ``bounds``; calling it trains on the next of ``batches``."""

    def __init__(
        self,
        chain: Chain,
        model: Model,
        bounds: Sequence[int],
        config: Mapping[str, Any],
        batches: Sequence[Sequence[Sequence[SampleMetadata]]],
    ) -> None:
        layers = [_Link(index in bounds) for index in range(len(chain.layers))]
        module = StaticModule(bounds, layers=layers, loss_fn=_loss, num_stages=len(bounds) - 1)
        # Its messages are timed as the run's, whatever numbers travel.
        self.engine = stock_engine(module, {name: value for name, value in config.items() if name != "bf16"})
        start, stop = bounds[self.engine.stage_id], bounds[self.engine.stage_id + 1]
        # Before the clock starts: DeepSpeed's engine must not be charged for it.
        self._steps = iter(
            [[_figures(chain, start, stop, sizes_of(samples, model)) for samples in step] for step in batches]
        )
        self._now: list[dict[str, float]] = []
        self._count: Counter[str] = Counter()
        self.marks: list[tuple[float, float]] = []
        kinds = {**_COMPUTE, **_MESSAGES}
        paced = {kind: self._paced(self.engine._INSTRUCTION_MAP[kind], name) for kind, name in kinds.items()}
        self.engine._INSTRUCTION_MAP = {**self.engine._INSTRUCTION_MAP, **paced}

    def _paced(self, run: Callable[..., Any], name: str) -> Callable[..., Any]:
        computes = name in _COMPUTE.values()

        def paced(*arguments: Any, **named: Any) -> Any:
            began = time.monotonic()
            result = run(*arguments, **named)
            # Every instruction of a kind is for the next microbatch.
            seconds = self._now[self._count[name]][name]
            self._count[name] += 1
            wait_until((began if computes else time.monotonic()) + seconds)
            if computes:
                self.marks.append((began, time.monotonic()))
            return result

        return paced

    def __call__(self) -> Any:
        """Train on the next batch."""
        self._now, self._count = next(self._steps), Counter()
        self.marks.clear()
        one = torch.ones(1, 1)
        return self.engine.train_batch(iter([(one, one)] * len(self._now)))

    def bubble(self) -> float:
        """The share of ranks times span without a stage, of the newest batch; all ranks call it."""
        return idle_share(self.marks)


def _figures(chain: Chain, start: int, stop: int, sizes: Mapping[str, Sizes]) -> dict[str, float]:
    forward, backward = chain.seconds(start, stop, sizes)
    return {
        "forward": forward,
        "backward": backward,
        "from_before": chain.message(start, sizes, gradient=False),
        "to_after": chain.message(stop, sizes, gradient=False),
        "gradient_from_after": chain.message(stop, sizes, gradient=True),
        "gradient_to_before": chain.message(start, sizes, gradient=True),
    }


class _Dip:
    """DIPEngine under one of its schedules."""

    def __init__(self, emulation: Emulation) -> None:
        self.engine = emulation.engine

    def __call__(self) -> Any:
        """Train on the next batch."""
        return self.engine.train_batch()

    def bubble(self) -> float:
        """Of the newest batch."""
        return float(self.engine.measured.bubble)


def measure(s: Mapping[str, Any]) -> None:
    """Every contender in turn; rank 0 tells what each took."""
    contenders: dict[str, Any] = {
        name: _Dip(started({**s, **own}, own["config"])) for name, own in s["engines"].items()
    }
    first = next(iter(s["engines"].values()))
    model, _, costs = read({**s, **first})
    config, dataset = first["config"], DatasetReference.parse(s["dataset"]).open()
    chain = Chain(model, costs, s["compute"])
    steps = s["blocks"] * (s["iterations"] + 1)
    batches = {
        balanced: [
            microbatches_of(model, dataset, step, config, balanced=balanced, costs=costs) for step in range(steps)
        ]
        for balanced in (False, True)
    }
    bounds = {}
    for name, (method, balanced) in STATIC.items():
        if balanced and config["train_micro_batch_size_per_gpu"] == 1:
            continue  # one sample each: there is nothing to balance
        bounds[name] = chain.cut(method, dist.get_world_size(), batches[balanced])
        contenders[name] = EmulatedStatic(chain, model, bounds[name], config, batches[balanced])
    blocks = interleave(contenders, s["blocks"], s["iterations"])
    document = _document(s, contenders, bounds, blocks)
    if dist.get_rank() == 0:
        tell(document)
    ds_dip.shutdown(*(contender.engine for contender in contenders.values() if isinstance(contender, _Dip)))


def _document(
    s: Mapping[str, Any], contenders: Mapping[str, Any], bounds: Mapping[str, Sequence[int]], blocks: Blocks
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, contender in contenders.items():
        bubble = contender.bubble()
        own = s["engines"].get(name, next(iter(s["engines"].values())))
        seconds = [value / own["costs"]["dilation"] for value in blocks.seconds[name]]
        found[name] = {
            "seconds": spread(seconds),
            "over_dip": ratios(blocks.seconds[name], blocks.seconds["dip"]),
            "bubble": bubble,
            "bounds": None if name not in bounds else list(bounds[name]),
        }
        if isinstance(contender, _Dip):
            found[name]["fallbacks"] = sum(contender.engine.plans.statistics().fallbacks.values())
            found[name]["schedule"] = contender.engine.plan.schedule
    return {"emulated": True, "machine": machine(), "contenders": found}


def main() -> None:
    """Run as one rank."""
    measure(begun())


if __name__ == "__main__":
    main()
