"""Every schedule that is known, each on the partition that suits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from ds_dip.costs.weights import WeightShares
from ds_dip.explaining.trial import Order, Trial, Way, describe, tried
from ds_dip.models.partition import Partition, PartitionError
from ds_dip.partition.bounds import bottleneck_bounds
from ds_dip.partition.chunks import make_partition
from ds_dip.partition.contiguous import contiguous_split
from ds_dip.partition.scoring import Scorer
from ds_dip.planning.batch import Batch
from ds_dip.planning.split import split, split_search
from ds_dip.reproduction.splits import interleaved_split
from ds_dip.scheduling import (
    BaselineError,
    InfeasibleError,
    Problem,
    Schedule,
    coarse_optimus,
    gpipe,
    interleave,
    interleaved_1f1b,
    one_f_one_b,
    solve,
    static_plan,
    zb_h1,
)

KEEP = ("none",)


@dataclass(frozen=True)
class Setting:
    """What ways are made from: the batches with their costs and memory, DIP's partition, and how much is searched.

    With ``same`` every schedule runs on DIP's partition. ``strategies`` are the memory strategies that stages choose
    from; a split backward takes longer by the share ``overhead``.
    """

    scorer: Scorer
    partition: Partition
    shares: WeightShares
    strategies: tuple[str, ...] = KEEP
    evaluations: int = 1000
    seed: int = 0
    most_laps: int = 4
    overhead: float = 0.0
    same: bool = False

    def seconds(self) -> Mapping[str, list[float]]:
        """Seconds of every layer in a mean batch, by module, where microbatches are whole."""
        return self.scorer.layer_seconds(make_partition(self.scorer.model, 1))

    def weights(self, problem: Problem, batch: Batch, partition: Partition) -> dict[int, float]:
        """By backward, the part of it that could be put off."""
        chunks = {(chunk.module, chunk.index): chunk for chunk in partition.chunks}
        found = {}
        for task in problem.tasks:
            if task.kind == "B":
                chunk = chunks[task.module, task.chunk]
                sizes = batch.microbatches[task.microbatch].sub_sizes(task.module, task.sub)
                found[task.id] = self.shares.share(task.module, chunk.start, chunk.stop, sizes)
        return found


def _plain(make: Callable[[Problem], Schedule]) -> Order:
    return lambda problem, *_: (problem, make(problem))


def _contiguous(make: Callable[[Problem], Schedule], name: str) -> Callable[[Setting], Iterator[Way]]:
    def ways(setting: Setting) -> Iterator[Way]:
        model, ranks = setting.scorer.model, setting.partition.ranks
        own = setting.partition if setting.same else contiguous_split(model, ranks, setting.seconds())
        detail = describe(own) if setting.same else "one stage a rank, by seconds"
        yield Way(name, detail, own, _plain(make), setting.strategies)

    return ways


def _zero_bubble(setting: Setting) -> Iterator[Way]:
    def order(problem: Problem, batch: Batch, partition: Partition) -> tuple[Problem, Schedule]:
        made, _ = split(problem, setting.weights(problem, batch, partition), setting.overhead)
        return made, zb_h1(made)

    model, own, detail = setting.scorer.model, setting.partition, describe(setting.partition)
    if not setting.same:
        own = interleaved_split(model, setting.partition.ranks, 1, setting.seconds())
        detail = "one chunk of one module a rank"
    # A backward that is split keeps everything.
    yield Way("zb-h1", detail, own, order, KEEP)


def _interleaved(setting: Setting) -> Iterator[Way]:
    if setting.same:
        own = setting.partition
        yield Way("interleaved", describe(own), own, _plain(interleaved_1f1b), setting.strategies)
        return
    seconds, model = setting.seconds(), setting.scorer.model
    refusal: PartitionError | None = None
    made = False
    for laps in range(1, setting.most_laps + 1):
        try:
            own = interleaved_split(model, setting.partition.ranks, laps, seconds)
        except PartitionError as error:
            refusal = error
            continue
        made = True
        yield Way("interleaved", f"v = {laps}, by seconds", own, _plain(interleaved_1f1b), setting.strategies)
    if refusal is not None and not made:
        raise refusal


def _optimus(setting: Setting) -> Iterator[Way]:
    own, model = setting.partition, setting.scorer.model
    if not setting.same:
        seconds = setting.seconds()
        ranks = setting.partition.ranks
        parts = {
            name: [stop - start for start, stop in pairwise(bottleneck_bounds(of, ranks))]
            for name, of in seconds.items()
            if len(of) >= ranks
        }
        own = make_partition(model, ranks, parts=parts)
    yield Way("coarse-optimus", describe(own), own, _plain(coarse_optimus), setting.strategies)


def _searched(setting: Setting, problem: Problem) -> Schedule:
    found = solve(problem, evaluations=setting.evaluations, seed=setting.seed)
    if found.schedule is None:
        raise InfeasibleError(str(found.reason), found.sufficient_capacity or ())
    return found.schedule


def _dip(name: str, *, search: bool, memory: bool) -> Callable[[Setting], Iterator[Way]]:
    def ways(setting: Setting) -> Iterator[Way]:
        def order(problem: Problem, *_: object) -> tuple[Problem, Schedule]:
            return problem, _searched(setting, problem) if search else interleave(problem)

        if memory and setting.strategies == KEEP:
            raise BaselineError("memory is not limited, or no strategies are given: no stage computes anything again")
        own = setting.partition
        yield Way(name, describe(own), own, order, setting.strategies if memory else KEEP)

    return ways


def _split(setting: Setting) -> Iterator[Way]:
    def order(problem: Problem, batch: Batch, partition: Partition) -> tuple[Problem, Schedule]:
        first = solve(problem, evaluations=max(1, setting.evaluations // 2), seed=setting.seed)
        if first.schedule is None:
            raise InfeasibleError(str(first.reason), first.sufficient_capacity or ())
        shares = setting.weights(problem, batch, partition)
        found = split_search(
            problem, first.schedule, shares, setting.overhead, max(1, setting.evaluations // 2), seed=setting.seed
        )
        if found is None or found[1].schedule is None:
            return problem, first.schedule
        return found[0], found[1].schedule

    yield Way("dip-split", describe(setting.partition), setting.partition, order, KEEP)


#: Every schedule by name, and the ways to run it, of which the fastest counts.
SCHEDULES: Mapping[str, tuple[str, Callable[[Setting], Iterator[Way]]]] = {
    "gpipe": ("all forwards, then all backwards", _contiguous(gpipe, "gpipe")),
    "1f1b": ("a forward and a backward in turn", _contiguous(one_f_one_b, "1f1b")),
    "zb-h1": ("1F1B whose weight gradients come later", _zero_bubble),
    "interleaved": ("1F1B over several chunks a rank, at the best v", _interleaved),
    "static": ("an order found for stages of mean length, run with the real ones", _contiguous(static_plan, "static")),
    "coarse-optimus": ("all encoder work before the backbone's 1F1B", _optimus),
    "dip-greedy": ("DIP's interleaving, not searched", _dip("dip-greedy", search=False, memory=False)),
    "dip": ("DIP's interleaving, searched; everything is kept", _dip("dip", search=True, memory=False)),
    "dip-memory": ("as dip, every stage with a memory strategy", _dip("dip-memory", search=True, memory=True)),
    "dip-split": ("as dip, backwards split where that is shorter", _split),
}


def compared(setting: Setting, names: tuple[str, ...], progress: Callable[[str], None] = lambda _: None) -> list[Trial]:
    """Each schedule on all batches, by its fastest way; where none can run, with the reason of the last."""
    found = []
    for name in names:
        progress(name)
        best: Trial | None = None
        try:
            for way in SCHEDULES[name][1](setting):
                own = tried(setting.scorer, way)
                if best is None or best.reason or (own.makespans and own.mean < best.mean):
                    best = own
        except (PartitionError, BaselineError) as error:
            best = best or Trial(name, "", reason=str(error))
        if best is not None:
            found.append(best)
    return found
