"""Systems on a job: what they choose from, and their iteration on held-out batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.data import SampleMetadata
from ds_dip.models.parameters import parameters
from ds_dip.models.partition import Partition, PartitionError
from ds_dip.models.spec import Layer
from ds_dip.parallelism import DISAGGREGATED, SEPARATED, Job, Layout, Prediction, Simulator, closed, optimize
from ds_dip.parallelism.optimizer import Effort, LayoutError
from ds_dip.parallelism.placing import partition_of
from ds_dip.parallelism.space import Options, columns
from ds_dip.partition.scoring import Scheduler, UnfitError
from ds_dip.reproduction.splits import contiguous_split

#: Layouts of a baseline's grid that memory holds and that are simulated, the most promising first.
_GRID = 48
Cutter = Callable[[Job, Layout], Partition]
Batches = Sequence[Sequence[SampleMetadata]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A system: the layout that it chose, seconds of the mean held-out batch, and the share of time that GPUs idle."""

    layout: str
    seconds: float
    idle: float
    memory: float


def by_parameters(job: Job, layout: Layout) -> Partition:
    """One chain of all modules in stages of equal parameters (Megatron-like)."""
    return _contiguous(job, layout, lambda layer: float(parameters(layer)))


def by_layers(job: Job, layout: Layout) -> Partition:
    """One chain of all modules in stages of equal numbers of layers (a PyTorch pipeline)."""
    return _contiguous(job, layout, lambda _: 1.0)


def _contiguous(job: Job, layout: Layout, weigh: Callable[[Layer], float]) -> Partition:
    weights = {module.name: [weigh(layer) for layer in module.layers] for module in job.model.modules}
    return contiguous_split(job.model, layout.backbone.pipeline, weights)


def systems(job: Job, scheduler: Scheduler, effort: Effort) -> Mapping[str, Outcome | str]:
    """Every system's outcome, or why it cannot run.

    Baselines have one TP, PP and DP for all modules, tuned by a grid, and take samples in turn. ``optimizer`` chooses
    a layout and takes samples in turn; ``scheduler`` balances them on the Megatron-like baseline's; ``DFLOP`` does both
    by its own objective, ``DIP`` is ours on its placement, and ``both`` ours on either.
    """
    steps = range(effort.batches + effort.held_out)
    drawn = [job.drawn(step, effort.seed) for step in steps]
    search, held_out = drawn[: effort.batches], drawn[effort.batches :]
    found: dict[str, Outcome | str] = {}
    for name, cutter in (("Megatron-like", by_parameters), ("PyTorch-like", by_layers)):
        layout = _grid(job, search, cutter)
        found[name] = _scored(job, held_out, layout, cutter, balanced=False)
        if name == "Megatron-like":
            found["scheduler"] = _scored(job, held_out, layout, cutter, balanced=True)
    for name, placements, mean in (
        ("DFLOP", (DISAGGREGATED,), True), ("DIP", (SEPARATED,), False), ("both", (SEPARATED, DISAGGREGATED), False),
    ):  # fmt: skip
        try:
            best = optimize(job, scheduler, Options(placements), effort, mean_point=mean).best
        except LayoutError as error:
            found[name] = str(error)
            continue
        found[name] = _outcome(best)
        if mean:
            found["optimizer"] = _scored(job, held_out, best.layout, None, balanced=False)
    return found


def _outcome(own: Prediction) -> Outcome:
    return Outcome(str(own.layout), own.mean, own.bubble, own.memory)


def _scored(
    job: Job,
    batches: Batches,
    layout: Layout | None,
    cutter: Cutter | None,
    *,
    balanced: bool,
) -> Outcome | str:
    """A layout on batches; as its memory strategy does not fit them, the next leaner one."""
    reason = "no layout of the grid fits"
    if layout is None:
        return reason
    simulator = Simulator(job, batches, cutter=cutter or partition_of, balanced=balanced)
    for strategy in STRATEGIES[STRATEGIES.index(layout.strategy) :]:
        try:
            own = simulator.predict(replace(layout, strategy=strategy))
        except UnfitError as error:
            reason = str(error)
            continue
        assert own is not None
        return _outcome(own)
    return reason


def _grid(job: Job, batches: Batches, cutter: Cutter) -> Layout | None:
    """The best of a grid of TP, PP, DP, microbatches and memory strategies on batches whose samples come in turn."""
    space = columns(job, Options((SEPARATED,), most_laps=1))
    order = np.argsort(closed.expected(job, closed.Means(job), space), kind="stable")
    simulator = Simulator(job, batches, cutter=cutter, balanced=False)
    best: Prediction | None = None
    left = _GRID
    for row in order:
        fits = False
        for strategy in STRATEGIES:
            layout = space.layout(int(row), (1,) * len(job.model.modules), strategy)
            try:
                own = simulator.predict(layout, every=False, limit=best.mean if best else np.inf)
            except (UnfitError, PartitionError):
                continue
            fits = True
            if own is not None:
                best = own
        left -= fits
        if not left:
            break
    return best.layout if best else None
