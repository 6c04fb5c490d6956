"""A rank of ``ds-dip bench adaptive``: one rank, then one shape, made slow; who follows, and what it brings."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, mode
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from torch import Tensor, nn

import ds_dip
from ds_dip.benchmarks.blocks import machine, ratios
from ds_dip.costs.corrections import size_class
from ds_dip.models import Context, load_model
from ds_dip.programs.program import Stage
from ds_dip.ranks import settings, tell

#: Error of the slow stages' predictions below which plans have followed.
FOLLOWED = 0.15


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The quickstart's description and DeepSpeed JSON, and what is made slow by which ``factor``.

    Each phase has so many ``steps``: a steady one, one in which the last rank is slow, a steady one, and one in which
    stages of the first module are, of the class of sizes that is most common.
    """

    model: str
    config: str
    ranks: int = 2
    steps: int = 24
    factor: float = 2.0


class Brake:
    """What is slow now on this rank: stages of ``modules`` of a class of sizes, or of any (None), by ``factor``."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.modules: tuple[str, ...] = ()
        self.size: int | None = None

    def holds(self, module: str, tokens: int) -> bool:
        """Whether a stage is slow."""
        return self.factor > 1 and module in self.modules and self.size in (None, size_class(tokens))


class _Slowed(torch.autograd.Function):
    """The identity, in whose backward ``seconds`` pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Braked(nn.Module):
    """A layer that takes longer where the brake holds: its forward by the factor, its backward by twice as much."""

    def __init__(self, layer: nn.Module, module: str, brake: Brake) -> None:
        super().__init__()
        self.layer, self._module, self._brake = layer, module, brake

    def forward(self, x: Any, context: Context) -> Tensor:
        """As the layer."""
        began = time.perf_counter()
        output: Tensor = self.layer(x, context)
        if not self._brake.holds(self._module, sum(context.sizes.tokens)):
            return output
        more = (self._brake.factor - 1) * (time.perf_counter() - began)
        time.sleep(more)
        return _Slowed.apply(output, 2 * more)  # type: ignore[no-any-return,no-untyped-call]  # untyped in torch


def braked(
    factories: Mapping[str, Sequence[Callable[[], nn.Module]]], brake: Brake
) -> dict[str, tuple[Callable[[], nn.Module], ...]]:
    """Factories of the same layers with a brake."""

    def wrapped(make: Callable[[], nn.Module], module: str) -> Callable[[], nn.Module]:
        return lambda: Braked(make(), module, brake)

    return {module: tuple(wrapped(make, module) for make in own) for module, own in factories.items()}


def make_engines(s: Adaptive, brake: Brake) -> dict[str, Any]:
    """Two engines alike, one of which follows single ranks and shapes."""
    model, engines = load_model(s.model), {}
    for name, adaptive in (("adaptive", True), ("lines alone", False)):
        config = copy.deepcopy(ds_dip.load_config(s.config))
        config["dip"] = {**config.get("dip", {}), "trace": {"every": 0}}
        config["dip"]["planner"] = {**config["dip"].get("planner", {}), "adaptive": adaptive}
        module = ds_dip.DIPModule(
            model,
            ds_dip.partition_for(model, config, s.ranks),
            braked(ds_dip.layer_factories(model), brake),
            ds_dip.token_cross_entropy,
        )
        samples = 8 * s.steps * config["train_batch_size"]
        reference = ds_dip.DatasetReference("ds_dip.data.digits:Digits", {"samples": samples})
        engines[name], *_ = ds_dip.initialize(model=module, training_data=reference, config=config)
    return engines


@dataclass(frozen=True, slots=True)
class Row:
    """A step: seconds of the iteration, and by what factor the slow stages (without any: all) missed their times."""

    seconds: float
    error: float


def row_of(engine: Any, slow: Callable[[int, Stage, int], bool]) -> Row:
    """Of the step that the engine has just trained on; ``slow`` of a rank, a stage and its tokens."""
    planned: dict[bool, float] = {True: 0.0, False: 0.0}
    took = dict(planned)
    for rank, (plans, measures) in enumerate(zip(engine.plan.stages, engine.measured.stages, strict=True)):
        for plan, measured in zip(plans, measures, strict=True):
            stage = plan.stage
            sizes = engine.plan.batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
            kind = slow(rank, stage, sum(sizes.tokens))
            planned[kind] += plan.end - plan.start
            took[kind] += measured.end - measured.start
    kind = took[True] > 0
    return Row(engine.measured.iteration, took[kind] / planned[kind] - 1)


def measure(s: Adaptive) -> None:
    """Run all phases, both engines in turn at every step."""
    brake = Brake()
    engines = make_engines(s, brake)
    first, model = next(iter(engines.values())), load_model(s.model)
    for _ in range(s.steps):
        for engine in engines.values():
            engine.train_batch()
    encoder, last = model.modules[0].name, s.ranks - 1
    sizes = [
        size_class(sum(microbatch.sub_sizes(encoder, sub).tokens))
        for microbatch in first.plan.batch.microbatches
        for sub in range(len(microbatch.subs[encoder]))
    ]
    common = mode(sizes) if sizes else 0
    every = tuple(module.name for module in model.modules)
    phases: dict[str, tuple[tuple[str, ...], int | None, Callable[[int, Stage, int], bool]]] = {
        "steady": ((), None, lambda *_: False),
        "slow rank": (every if dist.get_rank() == last else (), None, lambda rank, *_: rank == last),
        "steady again": ((), None, lambda *_: False),
        "slow shape": (
            (encoder,),
            common,
            lambda _, stage, size: stage.module == encoder and size_class(size) == common,
        ),
    }
    document: dict[str, Any] = {"settings": asdict(s), "machine": machine(), "slow_size": common, "phases": {}}
    for name, (modules, size, slow) in phases.items():
        brake.modules, brake.size, brake.factor = modules, size, s.factor
        rows: dict[str, list[Row]] = {which: [] for which in engines}
        for _ in range(s.steps):
            for which, engine in engines.items():
                engine.train_batch()
                rows[which].append(row_of(engine, slow))
        document["phases"][name] = summary(rows, engines)
    if dist.get_rank() == 0:
        tell(document)
    ds_dip.shutdown(*engines.values())


def summary(rows: dict[str, list[Row]], engines: Mapping[str, Any]) -> dict[str, Any]:
    """A phase: errors step by step, when they had become small, and how the iterations' times compare."""
    half = len(rows["adaptive"]) // 2
    return {
        "errors": {name: [row.error for row in own] for name, own in rows.items()},
        "followed_after": {name: followed([row.error for row in own]) for name, own in rows.items()},
        "lines_over_adaptive": ratios(
            [row.seconds for row in rows["lines alone"][half:]], [row.seconds for row in rows["adaptive"][half:]]
        ),
        "tracking": engines["adaptive"].plans.statistics().tracking,
        "tracking_seconds": engines["adaptive"].plans.statistics().tracking_seconds,
    }


def followed(errors: Sequence[float]) -> int | None:
    """The first step whose error is small, as is the median of it and the next two, and of all later ones, or None."""
    for step in range(len(errors) - 2):
        parts = (errors[step : step + 1], errors[step : step + 3], errors[step:])
        if all(abs(median(part)) <= FOLLOWED for part in parts):
            return step
    return None


def main() -> None:
    """Run as one rank."""
    deepspeed.init_distributed()
    measure(Adaptive(**settings()))


if __name__ == "__main__":
    main()
