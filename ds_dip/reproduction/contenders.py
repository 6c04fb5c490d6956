"""Systems on a case: a partition and a way to order each batch, and the seconds of a mean iteration that this gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import fsum

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.parameters import parameters
from ds_dip.models.partition import Partition, PartitionError
from ds_dip.partition.bounds import bottleneck_bounds
from ds_dip.partition.chunks import make_partition
from ds_dip.partition.contiguous import contiguous_split
from ds_dip.partition.rule import rule_partition
from ds_dip.partition.scoring import UnfitError
from ds_dip.partition.search import search
from ds_dip.partition.space import SearchOptions
from ds_dip.planner.ordering import schedulers
from ds_dip.reproduction.cases import Case
from ds_dip.reproduction.splits import interleaved_split
from ds_dip.scheduling import (
    BaselineError,
    InfeasibleError,
    Problem,
    Result,
    Schedule,
    coarse_optimus,
    interleave,
    interleaved_1f1b,
    lower_bound,
    one_f_one_b,
    retime,
    solve,
    static_plan,
)

Order = Callable[[Problem], Schedule]
MIXED = "a choice for every stage"
#: Partitions that a search keeps; twice as many are scored again as the planner schedules.
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """A system on a case: seconds of every sampled batch and their lower bounds (of its partition and memory).

    ``detail`` says which of its settings were best. Without a ``bound`` there is no schedule to bound.
    """

    seconds: tuple[float, ...]
    bounds: tuple[float, ...]
    detail: str
    strategy: str

    @property
    def mean(self) -> float:
        """Seconds of the mean iteration."""
        return fsum(self.seconds) / len(self.seconds)

    @property
    def gap(self) -> float | None:
        """How far the mean iteration is above its lower bound, as a share."""
        return self.mean * len(self.bounds) / fsum(self.bounds) - 1 if self.bounds else None


@dataclass(frozen=True, slots=True)
class Ordered:
    """An outcome with the schedules behind it, batch by batch, and the memory strategy of every module."""

    outcome: Outcome
    schedules: tuple[Schedule, ...]
    chosen: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Way:
    """A partition, how batches on it are ordered, and what is told of both."""

    partition: Partition
    order: Order
    detail: str


def ordered(case: Case, partition: Partition, order: Order, detail: str) -> Ordered:
    """The batches in this order, with the memory strategy of each module that makes them fastest.

    Raises UnfitError, with the last reason, where it fits by no strategies or cannot apply.
    """
    best: Ordered | None = None
    reason = ""
    names = [module.name for module in case.model.modules if case.model.backward(module.name)]
    for strategies in product(STRATEGIES, repeat=len(names)):
        chosen = {module.name: STRATEGIES[0] for module in case.model.modules} | dict(
            zip(names, strategies, strict=True)
        )
        try:
            found = _ordered(case.problems(partition, chosen), order, detail, chosen, names)
        except (UnfitError, BaselineError, InfeasibleError) as error:
            reason = str(error)
            continue
        if best is None or found.outcome.mean < best.outcome.mean:
            best = found
    if best is None:
        raise UnfitError(f"{case.name}, {detail}: {reason}")
    return best


def _ordered(
    problems: Sequence[Problem], order: Order, detail: str, chosen: Mapping[str, str], names: Sequence[str]
) -> Ordered:
    schedules = tuple(order(problem) for problem in problems)
    seconds = tuple(retime(*own).makespan for own in zip(problems, schedules, strict=True))
    bounds = tuple(lower_bound(problem)[0] for problem in problems)
    memory = ", ".join(f"{name} {chosen[name]}" for name in names)
    return Ordered(Outcome(seconds, bounds, detail, memory), schedules, chosen)


def mixed(case: Case, partition: Partition, start: Ordered, detail: str) -> Outcome:
    """Orders and memory strategies of single stages searched together, never slower than ``start``'s schedules."""
    found = [own for _, own in mixed_schedules(case, partition, start)]
    return Outcome(tuple(own.makespan for own in found), tuple(own.lower_bound for own in found), detail, MIXED)


def mixed_schedules(case: Case, partition: Partition, start: Ordered) -> list[tuple[Problem, Result]]:
    """The schedules behind ``mixed``, batch by batch, with the problems that they are of."""
    found = []
    for problem, schedule in zip(case.problems(partition), start.schedules, strict=True):
        modules = {task.id: task.module for task in problem.tasks}
        same = tuple(STRATEGIES.index(start.chosen[modules[pair.forward]]) for pair in problem.pairs)
        found.append((problem, _search(case, problem, Schedule(schedule.order, same))))
    return found


def reordered(case: Case, partition: Partition, detail: str) -> Ordered:
    """Orders searched, from the dual-queue ones and with their memory strategies; never slower than they are."""
    start = ordered(case, partition, interleave, detail)
    problems = case.problems(partition, start.chosen)
    found = [_search(case, *own) for own in zip(problems, start.schedules, strict=True)]
    schedules = tuple(own.schedule for own in found if own.schedule is not None)
    assert len(schedules) == len(found), "a search that starts from a schedule has one"
    seconds = tuple(own.makespan for own in found)
    return Ordered(replace(start.outcome, seconds=seconds), schedules, start.chosen)


def _search(case: Case, problem: Problem, start: Schedule) -> Result:
    return solve(problem, evaluations=case.effort.evaluations, seed=case.effort.seed, warm_start=start)


def rule(case: Case) -> Partition:
    """The partition of the paper's rule on the sampled batches."""
    scorer, model = case.scorer, case.model
    return rule_partition(model, case.setup.ranks, scorer.costs, scorer.workload, _most(case))


def searched(case: Case) -> Partition:
    """The partition that the offline search finds on the sampled batches; never slower, there, than the rule's."""
    effort = case.effort
    options = SearchOptions(evaluations=effort.partition_evaluations, most_laps=effort.most_laps, shown=SHOWN)
    final = case.scorer.by(schedulers("dip", effort.evaluations, effort.seed)[1])
    return search(case.scorer, case.setup.ranks, options, final=final).best.partition


def megatron(case: Case) -> Outcome:
    """Interleaved 1F1B of chunks with equal parameters, at the best v."""
    return best(case, megatron_ways(case))[1].outcome


def megatron_ways(case: Case) -> Iterator[Way]:
    """Megatron's partitions, one for every v."""
    return _interleaved(case, _parameters(case))


def balanced(case: Case) -> Outcome:
    """Interleaved 1F1B of chunks that take equally long in the mean batch, at the best v: stronger than the paper's."""
    return best(case, _interleaved(case, _seconds(case)))[1].outcome


def _interleaved(case: Case, weights: dict[str, list[float]]) -> Iterator[Way]:
    for laps in range(1, case.effort.most_laps + 1):
        try:
            partition = interleaved_split(case.model, case.setup.ranks, laps, weights)
        except PartitionError:
            return
        yield Way(partition, interleaved_1f1b, f"v = {laps}")


def static(case: Case) -> Outcome:
    """A static plan for the mean batch (nnScaler-like): one stage a rank and a fixed order.

    Stages take equally long in the mean batch, or hold more equal parameters where that fits into memory or is faster;
    the order is 1F1B, or what is found with mean durations, whichever is faster.
    """
    return best(case, static_ways(case))[1].outcome


def static_ways(case: Case) -> Iterator[Way]:
    """The partitions and orders that a static plan chooses from."""
    seconds, held = _shares(_seconds(case)), _shares(_parameters(case))
    for part in (0.0, 0.25, 0.5, 0.75):
        weights = {
            name: [(1 - part) * a + part * b for a, b in zip(own, held[name], strict=True)]
            for name, own in seconds.items()
        }
        partition = contiguous_split(case.model, case.setup.ranks, weights)
        what = f"{part:.0%} by parameters" if part else "by seconds"
        yield Way(partition, one_f_one_b, f"{what}, 1F1B")
        yield Way(partition, static_plan, f"{what}, order of the mean")


def optimus(case: Case) -> Outcome:
    """Coarse Optimus: each module over all ranks in one lap, all encoder work before the backbone's 1F1B."""
    return best(case, optimus_ways(case))[1].outcome


def optimus_ways(case: Case) -> Iterator[Way]:
    """Coarse Optimus' only partition and order."""
    seconds = _seconds(case)
    cuts = {name: bottleneck_bounds(own, case.setup.ranks) for name, own in seconds.items()}
    parts = {name: [stop - start for start, stop in pairwise(bounds)] for name, bounds in cuts.items()}
    yield Way(make_partition(case.model, case.setup.ranks, parts=parts), coarse_optimus, "one lap")


def paper(case: Case) -> Outcome:
    """DIP by the paper's rule for partitions, with our search for orders and memory strategies."""
    return _ours(case, rule(case))


def ours(case: Case) -> Outcome:
    """As ``paper``, on the partition that our search finds."""
    return _ours(case, searched(case))


def _ours(case: Case, partition: Partition) -> Outcome:
    detail = describe(case, partition)
    return mixed(case, partition, reordered(case, partition, detail), detail)


def _parameters(case: Case) -> dict[str, list[float]]:
    """Parameters of every layer, by module."""
    return {module.name: [float(parameters(layer)) for layer in module.layers] for module in case.model.modules}


def _shares(weights: dict[str, list[float]]) -> dict[str, list[float]]:
    """Weights as shares of all of them."""
    total = fsum(map(fsum, weights.values()))
    return {name: [weight / total for weight in own] for name, own in weights.items()}


def _seconds(case: Case) -> dict[str, list[float]]:
    """Seconds of every layer in a mean batch whose microbatches are whole, by module."""
    return case.scorer.layer_seconds(make_partition(case.model, case.setup.ranks))


def _most(case: Case) -> dict[str, int]:
    """The largest number of instances that a microbatch holds, by module."""
    microbatches = case.scorer.microbatches(make_partition(case.model, case.setup.ranks))
    return {module.name: max(len(own.sizes[module.name]) for own in microbatches) for module in case.model.modules}


def describe(case: Case, partition: Partition) -> str:
    """K and B of every module in a line."""
    limits, parts = dict(partition.sub_microbatch), []
    for module in case.model.modules:
        limit = limits.get(module.name)
        parts.append(f"{module.name} K={partition.of(module.name)[-1].segment + 1} B={limit or 'whole'}")
    return ", ".join(parts)


def best(case: Case, ways: Iterable[Way]) -> tuple[Way, Ordered]:
    """The fastest of some partitions and orders; raises UnfitError where none can run."""
    found: tuple[Way, Ordered] | None = None
    reason: UnfitError | None = None
    for way in ways:
        try:
            own = ordered(case, way.partition, way.order, way.detail)
        except UnfitError as error:
            reason = error
            continue
        if found is None or own.outcome.mean < found[1].outcome.mean:
            found = way, own
    if found is None:
        raise reason or UnfitError(f"{case.name}: no way to cut it")
    return found
