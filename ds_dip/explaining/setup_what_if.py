"""What another setup would bring for a model and its data: K, sub-microbatches, microbatches, memory, links.

Each is planned and searched again on the same sampled batches, with several seeds, as the setup that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ds_dip.costs.model import CostModel
from ds_dip.explaining.trial import Order, Way, tried
from ds_dip.explaining.what_if import MICROBATCHES, RANKS, Effort, Outcome, balance
from ds_dip.models.partition import Partition, PartitionError
from ds_dip.models.spec import Sizes
from ds_dip.partition.chunks import PLACEMENTS, chunk_ranks, make_partition
from ds_dip.partition.memory import Memory
from ds_dip.partition.scoring import Scorer
from ds_dip.partition.workload import Workload, typical
from ds_dip.planner.ordering import schedulers
from ds_dip.scheduling import InfeasibleError, Problem, Schedule, solve


@dataclass(frozen=True)
class Setup:
    """Batches with their costs, and how they are run; ``strategies`` are the memory strategies that stages have.

    Every batch's problem is changed as ``change`` says, a name of ``what_if.balance``'s.
    """

    workload: Workload
    costs: CostModel
    partition: Partition
    memory: Memory
    strategies: tuple[str, ...]
    change: str = ""


class FasterLinks:
    """A cost model whose transfers take a part of their time."""

    def __init__(self, costs: CostModel, factor: float) -> None:
        self._costs, self._factor = costs, factor

    def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the forward."""
        return self._costs.forward(module, start, stop, sizes)

    def backward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Seconds of the backward."""
        return self._costs.backward(module, start, stop, sizes)

    def activation_bytes(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
        """Bytes kept until the backward."""
        return self._costs.activation_bytes(module, start, stop, sizes)

    def transfer(self, bytes: float) -> float:
        """Seconds of a transfer."""
        return self._factor * self._costs.transfer(bytes)


def setup_what_if(
    scorer: Scorer,
    setup: Setup,
    names: Sequence[str] = (),
    effort: Effort | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """The setup as it is first, then the named changes that apply (see ``CHANGES``; all without a name).

    An outcome's makespans are those of the mean batch, one a seed, its bound the mean lower bound.
    """
    effort, found = effort or Effort(evaluations=300), []
    base = ("as it is", "the same setup, searched again", setup)
    changes = [own for kind in (names or CHANGES) for own in CHANGES[kind](scorer, setup)]
    for name, what, changed in [base, *changes]:
        progress(name)
        found.append(_outcome(scorer, name, what, changed, effort))
    return found


def _outcome(scorer: Scorer, name: str, what: str, setup: Setup, effort: Effort) -> Outcome:
    own = Scorer(
        scorer.model,
        setup.workload,
        setup.costs,
        schedulers("dip", 0)[0],
        setup.memory,
        scorer.ending,
        setup.strategies,
    )
    makespans, bounds = [], 0.0
    for seed in range(effort.seeds):
        trial = tried(own, Way(name, what, setup.partition, _search(effort, seed, setup.change), setup.strategies))
        if trial.reason:
            return Outcome(name, what, (), 0.0, trial.reason)
        makespans.append(trial.mean)
        bounds = sum(trial.bounds) / len(trial.bounds)
    return Outcome(name, what, tuple(makespans), bounds)


def _search(effort: Effort, seed: int, change: str) -> Order:
    def order(problem: Problem, *_: object) -> tuple[Problem, Schedule]:
        if change:
            problem = next((own.problem for own in balance(problem) if own.name == change), problem)
        found = solve(problem, evaluations=effort.evaluations, budget=effort.budget, seed=seed)
        if found.schedule is None:
            raise InfeasibleError(str(found.reason), found.sufficient_capacity or ())
        return problem, found.schedule

    return order


_Changed = Iterator[tuple[str, str, Setup]]


def _laps(scorer: Scorer, setup: Setup) -> _Changed:
    """K of one module at a time, one more or fewer, as deep as its layers allow."""
    for module in scorer.model.modules:
        now = setup.partition.of(module.name)[-1].segment + 1
        for laps in (now - 1, now + 1):
            if laps < 1:
                continue
            try:
                made = _recut(scorer, setup, {module.name: laps})
            except PartitionError:
                continue
            yield f"{module.name} K={laps}", f"chunks of {module.name} in {laps} laps, in place of {now}", made


def _recut(scorer: Scorer, setup: Setup, changes: Mapping[str, int]) -> Setup:
    """The setup with other laps of some modules, whose slowest chunk is as fast as can be; the others stay."""
    model, partition = scorer.model, setup.partition
    laps, parts, sizes = dict(changes), {}, {}
    for module in model.modules:
        if module.name not in changes:
            parts[module.name] = [chunk.stop - chunk.start for chunk in partition.of(module.name)]
        else:
            sizes[module.name] = typical(model, module.name, setup.workload, 1)
    sizes = {name: own for name, own in sizes.items() if len(own)}
    made = make_partition(
        model,
        partition.ranks,
        laps,
        dict(partition.sub_microbatch),
        setup.costs,
        sizes=sizes,
        parts=parts,
        placement=_placement(scorer, partition),
    )
    return replace(setup, partition=made)


def _placement(scorer: Scorer, partition: Partition) -> str:
    """How chunks go over the ranks: zigzag where they do, looped else."""
    names = [module.name for module in scorer.model.modules]
    homes = {name: tuple(chunk.rank for chunk in partition.of(name)) for name in names}
    chunks = {name: len(own) for name, own in homes.items()}
    for placement in PLACEMENTS:
        if chunk_ranks(scorer.model, chunks, partition.ranks, placement) == homes:
            return placement
    return PLACEMENTS[0]


def _subs(scorer: Scorer, setup: Setup) -> _Changed:
    """B of one module at a time: half, twice, and whole microbatches."""
    limits = dict(setup.partition.sub_microbatch)
    microbatches = scorer.microbatches(setup.partition)
    for module in scorer.model.modules:
        name, now = module.name, limits.get(module.name)
        most = max(len(own.sizes[name]) for own in microbatches)
        if scorer.model.upstream(name) or most < 2:
            continue
        for size in (-(-(now or most) // 2), None if now is None else 2 * now, None):
            if size == now or (size is not None and size >= most):
                continue
            changed = tuple((own, size if own == name else limit) for own, limit in setup.partition.sub_microbatch)
            what, told = str(size), f"{size} instances a sub-microbatch"
            if size is None:
                what, told = "whole", "whole microbatches"
            yield (
                f"{name} B={what}",
                f"{told} of {name}, in place of {now or 'whole ones'}",
                replace(setup, partition=replace(setup.partition, sub_microbatch=changed)),
            )


def _microbatches(_: Scorer, setup: Setup) -> _Changed:
    now = setup.workload.microbatches
    for count in (now - 1, now + 1, 2 * now):
        if 0 < count <= min(map(len, setup.workload.batches)) // setup.workload.replicas:
            changed = replace(setup.workload, microbatches=count)
            yield f"{count} microbatches", f"the same samples in {count}, not {now}", replace(setup, workload=changed)


def _memory(_: Scorer, setup: Setup) -> _Changed:
    memory = setup.memory
    if memory.bytes is None and not any(memory.limits):
        return
    more = tuple(None if own is None else 1.25 * own for own in memory.limits)
    yield (
        "memory x1.25",
        "a quarter more memory a device",
        replace(
            setup, memory=replace(memory, bytes=None if memory.bytes is None else 1.25 * memory.bytes, limits=more)
        ),
    )
    free = replace(memory, bytes=None, limits=())
    yield "no memory limit", "as much memory as it takes", replace(setup, memory=free)


def _links(_: Scorer, setup: Setup) -> _Changed:
    yield "links x2", "every transfer in half the time", replace(setup, costs=FasterLinks(setup.costs, 0.5))
    yield "no transfers", "messages that take no time", replace(setup, costs=FasterLinks(setup.costs, 0.0))


def _balance(_: Scorer, setup: Setup) -> _Changed:
    for name, what in (
        (RANKS, "all ranks have as much to do, by one factor for the stages of each"),
        (MICROBATCHES, "every stage takes as long as it does in its batch's mean microbatch"),
    ):
        yield name, what, replace(setup, change=name)


#: What can be changed, and how: nothing where it does not apply.
CHANGES: Mapping[str, Callable[[Scorer, Setup], _Changed]] = {
    "laps": _laps,
    "sub-microbatch": _subs,
    "microbatch": _microbatches,
    "memory": _memory,
    "links": _links,
    "balance": _balance,
}
