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
from ds_dip.partition.contiguous import contiguous_split
from ds_dip.partition.scoring import Scheduler, UnfitError

#: Layouts of a baseline's grid that memory holds and that are simulated, the most promising first.
_GRID = 48
#: By name, in the order of the report: what they are.
SYSTEMS: Mapping[str, str] = {
    "megatron": "Megatron-like, tuned by grid",
    "pytorch": "PyTorch-like, tuned by grid",
    "optimizer": "DFLOP's optimizer alone",
    "scheduler": "DFLOP's scheduler alone",
    "dflop": "DFLOP",
    "dip": "DIP alone",
    "both": "DIP and DFLOP",
}
BASELINES = ("megatron", "pytorch")
Cutter = Callable[[Job, Layout], Partition]
Batches = Sequence[Sequence[SampleMetadata]]
#: Told before every system: its name.
Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A system: the layout that it chose, seconds of the mean held-out batch, and the share of time that GPUs idle.

    ``bound`` are seconds that no order of its stages is below, ``memory`` the fullest GPU's bytes.
    """

    layout: str
    seconds: float
    bound: float
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


def systems(
    job: Job, scheduler: Scheduler, effort: Effort, options: Options | None = None, told: Told = lambda _: None
) -> Mapping[str, Outcome | str]:
    """Every system's outcome, or why it cannot run.

    Baselines have one TP, PP and DP for all modules, tuned by a grid, take samples in turn and run 1F1B. ``optimizer``
    runs its layout so, ``scheduler`` balances samples on the Megatron-like layout, ``dflop`` does both. ``dip`` runs
    every module on all ranks in laps, orders each batch, and takes samples in turn; ``both`` balances samples, orders
    each batch, and chooses any placement by scheduled batches. ``options`` bound what is chosen from.
    """
    options = options or Options()
    steps = range(effort.batches + effort.held_out)
    drawn = [job.drawn(step, effort.seed) for step in steps]
    search, held_out = drawn[: effort.batches], drawn[effort.batches :]
    found: dict[str, Outcome | str] = {}
    grids: dict[str, Layout | None] = {}
    for name, cutter in zip(BASELINES, (by_parameters, by_layers), strict=True):
        told(name)
        grids[name] = _grid(job, search, cutter, options)
        found[name] = _scored(job, held_out, grids[name], cutter, balanced=False)
    told("scheduler")
    found["scheduler"] = _scored(job, held_out, grids["megatron"], by_parameters, balanced=True)
    for name, placements, own in (
        ("dflop", (DISAGGREGATED,), replace(effort, fixed=True)),
        ("dip", (SEPARATED,), replace(effort, balanced=False)),
        ("both", options.placements, effort),
    ):
        told(name)
        chosen = replace(options, placements=placements)
        try:
            best = optimize(job, scheduler, chosen, own, mean_point=name == "dflop").best
        except LayoutError as error:
            found[name] = str(error)
        else:
            found[name] = _outcome(best)
            if name == "dflop":
                told("optimizer")
                found["optimizer"] = _scored(job, held_out, best.layout, partition_of, balanced=False)
    found.setdefault("optimizer", found["dflop"])
    return {name: found[name] for name in SYSTEMS}


def _outcome(own: Prediction) -> Outcome:
    return Outcome(str(own.layout), own.mean, own.bound, own.bubble, own.memory)


def _scored(job: Job, batches: Batches, layout: Layout | None, cutter: Cutter, *, balanced: bool) -> Outcome | str:
    """A layout on batches; as its memory strategy does not fit them, the next leaner one."""
    reason = "no layout of the grid fits"
    if layout is None:
        return reason
    simulator = Simulator(job, batches, cutter=cutter, balanced=balanced, fixed=True)
    for strategy in STRATEGIES[STRATEGIES.index(layout.strategy) :]:
        try:
            own = simulator.predict(replace(layout, strategy=strategy))
        except UnfitError as error:
            reason = str(error)
            continue
        assert own is not None
        return _outcome(own)
    return reason


def _grid(job: Job, batches: Batches, cutter: Cutter, options: Options) -> Layout | None:
    """The best of a grid of TP, PP, DP, microbatches and memory strategies on batches whose samples come in turn."""
    space = columns(job, replace(options, placements=(SEPARATED,), most_laps=1))
    order = np.argsort(closed.expected(job, closed.Means(job), space), kind="stable")
    simulator = Simulator(job, batches, cutter=cutter, balanced=False, fixed=True)
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
            best, fits = own or best, True
            # What computes less again is faster in the same order.
            break
        left -= fits
        if not left:
            break
    return best.layout if best else None
