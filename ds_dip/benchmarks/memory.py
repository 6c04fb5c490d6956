"""A rank of ``ds-dip bench memory``: the quickstart's training by each memory strategy, and under memory limits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import deepspeed
import torch
from deepspeed import comm as dist
from deepspeed.runtime.config import DeepSpeedConfig
from torch.profiler import ProfilerActivity, profile, record_function

import ds_dip
from ds_dip.benchmarks.blocks import interleave, machine, ratios, spread
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.data import SampleMetadata
from ds_dip.models import load_model
from ds_dip.planner import Planner, PlannerSettings, SourceStatistics, StepPlan
from ds_dip.programs import strategies_of
from ds_dip.ranks import settings, tell
from ds_dip.runtime.initialize import make_engine

_BEGIN, _END = "the program begins", "the program ends"


@dataclass(frozen=True, slots=True)
class Memory:
    """The quickstart's description and DeepSpeed JSON, ``ranks``, ``limits`` as shares and how long to measure."""

    model: str
    config: str
    ranks: int
    limits: Sequence[float] = (0.7, 0.5)
    blocks: int = 6
    iterations: int = 3


class SamePlans:
    """A PlanSource: every rank makes the same plan for itself, of one batch, again and again.

    ``free`` is the peak memory of each rank where everything is kept.
    """

    def __init__(self, own: PlannerSettings) -> None:
        self.settings, self._made = own, dict[tuple[Any, ...], StepPlan]()
        self.free = Planner(own).plan(0).peak_memory
        self.plan = self._of(None, STRATEGIES[:1])

    def choose(self, share: float | None, strategies: Sequence[str]) -> None:
        """From now on plans within a share of ``free`` (None: no limit), of these strategies.

        Raises PlanningError where they do not fit.
        """
        self.plan = self._of(share, tuple(strategies))

    def _of(self, share: float | None, strategies: tuple[str, ...]) -> StepPlan:
        key = share, strategies
        if key not in self._made:
            limits = None if share is None else tuple(share * most for most in self.free)
            self._made[key] = Planner(replace(self.settings, memory_capacity=limits, strategies=strategies)).plan(0)
        return self._made[key]

    def next(self, step: int) -> StepPlan:
        """The plan, for this step."""
        return replace(self.plan, step=step)

    def evaluation(self, samples: Sequence[SampleMetadata]) -> StepPlan:
        """A plan of forwards only."""
        return Planner(self.settings).evaluation(0, samples)

    def tell(self, coming: Any) -> None:
        """Nothing: samples are at hand."""

    def measured(self, step: Any) -> None:
        """Nothing: plans do not follow measurements."""

    def resume(self, corrections: Any) -> None:
        """Nothing: every step has the same plan."""

    def adopt(self, adopted: Any) -> None:
        """Nothing: every step has the same plan."""

    def statistics(self) -> SourceStatistics:
        """Nothing is counted."""
        return SourceStatistics()

    def close(self) -> None:
        """Nothing to end."""


def program_peak(engine: Any) -> float:
    """Bytes that a step's program on this rank holds at most beyond what was there: the allocator's own count.

    Parameters have their gradients before it, as those are no activations. On the processor these are the events of
    torch's allocator, elsewhere the accelerator's own peak.
    """
    executor = engine._executor
    begin, finish = executor.begin, executor.finish

    def begun(*args: Any, **kwargs: Any) -> None:
        for parameter in engine.module.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        begin(*args, **kwargs)
        with record_function(_BEGIN):
            pass

    def finished() -> None:
        with record_function(_END):
            pass
        finish()

    executor.begin, executor.finish = begun, finished
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            engine.train_batch()
    finally:
        del executor.begin, executor.finish
    if engine.measured.peak_memory:
        return float(engine.measured.peak_memory[engine.stage_id])
    events = found.profiler.kineto_results.events()
    times = {event.name(): event.start_ns() for event in events if event.name() in (_BEGIN, _END)}
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in events
        if event.name() == "[memory]" and times[_BEGIN] <= event.start_ns() <= times[_END]
    )
    return float(max(itertools.accumulate((change for _, change in changes), initial=0)))


def contenders(plans: SamePlans, run: Callable[[], Any], limits: Sequence[float]) -> dict[str, Callable[[], Any]]:
    """An iteration of each strategy, and of all of them within each limit that they fit into."""
    wanted: dict[str, tuple[float | None, Sequence[str]]] = {name: (None, (name,)) for name in STRATEGIES}
    wanted |= {f"within {share:.0%}": (share, STRATEGIES) for share in limits}

    def of(share: float | None, strategies: Sequence[str]) -> Callable[[], Any]:
        plans.choose(share, strategies)  # refused here rather than in the middle

        def iteration() -> Any:
            plans.choose(share, strategies)
            return run()

        return iteration

    return {name: of(*choice) for name, choice in wanted.items()}


def measure(s: Memory) -> None:
    """Set up, measure memory and then time, deliver."""
    config = {**ds_dip.load_config(s.config), "zero_optimization": {"stage": 0}}
    model = load_model(s.model)
    partition = ds_dip.partition_for(model, config, s.ranks)
    module = ds_dip.DIPModule(model, partition, ds_dip.layer_factories(model), ds_dip.token_cross_entropy)
    samples, microbatches = config["train_batch_size"], config.get("gradient_accumulation_steps", 1)
    data = ds_dip.DatasetReference("ds_dip.data.digits:Digits", {"samples": samples})
    plans = SamePlans(PlannerSettings(model, partition, data, samples, microbatches=microbatches, paced=False))
    engine = make_engine(module, config, DeepSpeedConfig(config, module.mpu()), plans, data.open())
    runs = contenders(plans, engine.train_batch, s.limits)
    runs[STRATEGIES[0]]()
    rows = {}
    for name, run in runs.items():
        run()
        mine = torch.tensor(program_peak(engine), dtype=torch.float64)
        peaks = [torch.zeros_like(mine) for _ in range(s.ranks)]
        dist.all_gather(peaks, mine)
        rows[name] = {
            "predicted_bytes": plans.plan.peak_memory,
            "measured_bytes": [float(peak) for peak in peaks],
            "stages": Counter(strategies_of(plans.plan.programs).values()),
            "makespan": plans.plan.makespan,
        }
    blocks = interleave(runs, s.blocks, s.iterations)
    if dist.get_rank() == 0:
        times = {
            name: {"seconds": spread(own), "over_none": ratios(own, blocks.seconds[STRATEGIES[0]])}
            for name, own in blocks.seconds.items()
        }
        found = {name: {**row, **times[name]} for name, row in rows.items()}
        tell({"settings": asdict(s), "machine": machine(), "contenders": found})
    ds_dip.shutdown(engine)


def main() -> None:
    """Run as one rank."""
    deepspeed.init_distributed()
    measure(Memory(**settings()))


if __name__ == "__main__":
    main()
