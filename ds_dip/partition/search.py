"""K, B and layer bounds by search: every candidate is scored by schedules of the same sample batches.

The search has no randomness of its own: it starts from the paper's rule and from the plainest
partitions, changes K of two modules, B of one, or how bounds are found, as long as that lowers the
mean predicted iteration, then shifts single layers. What cannot be among the best by the work on its
busiest rank is never scheduled, which loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import fsum, inf

from ds_dip.models.partition import Partition, PartitionError
from ds_dip.partition.bounds import bottleneck_bounds, even_bounds, levelled_bounds, moves
from ds_dip.partition.chunks import chunk_count, chunk_ranks, make_partition
from ds_dip.partition.rule import rule_partition
from ds_dip.partition.scoring import Score, Scorer, UnfitError
from ds_dip.partition.space import BOTTLENECK, EVEN, SearchOptions, Setting, Space

RULE, SHIFTED = "rule", "shifted"
#: An improvement of less than this share is none.
_LEAST = 1e-9
#: How many combinations of K have the layers of their best partition shifted.
_REFINED = 8
#: As many times the candidates that are shown are scored again in the end.
_RESCORED = 2

#: Told after every candidate: schedules made, the budget, seconds of the best mean iteration.
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: ``candidates`` are the best, fastest first, the first of them the answer.

    ``rule`` is the rule's own score, None where it does not fit (then ``rule_refusal`` says why).
    ``tried`` candidates were looked at, ``pruned`` of them left early, ``unfit`` cannot run;
    ``schedules`` were made.
    """

    candidates: tuple[Score, ...]
    rule: Score | None
    rule_refusal: str
    tried: int
    pruned: int
    unfit: int
    schedules: int

    @property
    def best(self) -> Score:
        """The fastest candidate."""
        return self.candidates[0]


def search(
    scorer: Scorer,
    ranks: int,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    final: Scorer | None = None,
) -> Found:
    """The best partition found for ``ranks`` pipeline ranks, never worse than the rule's unless options exclude that.

    ``final`` scores the rule and the best candidates again, in a way too slow for all of them: as the
    run's planner does, which searches each batch's order. Where stages have a choice of memory strategies, what is best
    with everything kept is a candidate too, where that fits. Deterministic in the scorers' workload and
    costs and in the options. Raises PartitionError where a module has fewer layers than ranks, where an
    option does not fit the model, or where nothing fits into memory.
    """
    wanted, told = options or SearchOptions(), progress or (lambda *_: None)
    kept: Found | None = None
    if len(scorer.strategies) > 1:
        with suppress(PartitionError):
            kept = _Search(scorer.keeping(), ranks, wanted, told).run(None)
    return _Search(scorer, ranks, wanted, told).run(final, kept)


class _ExhaustedError(Exception):
    """The budget is used up."""


class _Search:
    def __init__(self, scorer: Scorer, ranks: int, options: SearchOptions, progress: Progress) -> None:
        self.scorer, self.ranks, self.options, self.progress = scorer, ranks, options, progress
        self.model = scorer.model
        self.names = [module.name for module in self.model.modules]
        self.layers = {module.name: len(module.layers) for module in self.model.modules}
        # Refuses what no candidate could be: too few layers, and options that do not fit the model.
        make_partition(self.model, ranks, options.laps, options.sub_microbatch, parts=options.parts)
        self.plain = make_partition(self.model, ranks)
        microbatches = scorer.microbatches(self.plain)
        self.most = {name: max(len(own.sizes[name]) for own in microbatches) for name in self.names}
        self.space = Space(self.model, ranks, options, self.most)
        self.scores: dict[Partition, Score | None] = {}
        self.unfit: dict[Partition, str] = {}
        self.seconds: dict[tuple[int | None, ...], dict[str, list[float]]] = {}

    def run(self, final: Scorer | None, kept: Found | None = None) -> Found:
        rule = rule_partition(self.model, self.ranks, self.scorer.costs, self.scorer.workload, self.most)
        first = self._try(rule, RULE, essential=True)
        starts = self.space.starts(rule)
        others = kept.candidates if kept else ()
        given = [self._try(own.partition, own.split, essential=True) for own in others]
        try:
            for start in starts:
                self._try(self._partition(start), start.split, essential=True)
            for start in starts:
                self._descend(start)
            self._refine()
        except _ExhaustedError:
            pass
        if not (ranked := self._ranked()):
            raise PartitionError(
                f"no partition of {self.model.name} on {self.ranks} ranks fits: {next(iter(self.unfit.values()))}; "
                "use more pipeline ranks or replicas, give ranks more memory, or make microbatches smaller"
            )
        ranked = _distinct(ranked)[: _RESCORED * self.options.shown if final else self.options.shown]
        if final is not None:
            first, ranked = self._again(final, first, [*(own for own in given if own is not None), *ranked])
        tried, pruned, unfit, schedules = 0, 0, 0, 0
        if kept is not None:
            tried, pruned, unfit, schedules = kept.tried, kept.pruned, kept.unfit, kept.schedules
        return Found(
            candidates=tuple(ranked[: self.options.shown]),
            rule=first,
            rule_refusal=self.unfit.get(rule, ""),
            tried=tried + len(self.scores),
            pruned=pruned + sum(score is None for score in self.scores.values()) - len(self.unfit),
            unfit=unfit + len(self.unfit),
            schedules=schedules + self.scorer.used + (final.used if final else 0),
        )

    def _again(self, final: Scorer, rule: Score | None, ranked: Sequence[Score]) -> tuple[Score | None, list[Score]]:
        """The rule and the candidates, scored by ``final``; the rule is one of them where the options allow it."""
        found: dict[Partition, Score] = {}
        for score in [*([] if rule is None else [rule]), *ranked]:
            if score.partition not in found:
                again = final.score(score.partition, score.split)
                assert again is not None
                found[score.partition] = again
                best = min((own.mean for own in found.values()), default=inf)
                self.progress(self.scorer.used + final.used, self.scorer.used + final.used, best)
        allowed = [own for own in found.values() if self.space.holds(own.partition)]
        return (None if rule is None else found[rule.partition]), _distinct(_sorted(allowed))

    def _ranked(self) -> list[Score]:
        """Candidates that the options allow, fastest first; of equals the one with the fewest chunks."""
        return _sorted(own for own in self.scores.values() if own is not None and self.space.holds(own.partition))

    def _try(self, partition: Partition, split: str, *, essential: bool = False) -> Score | None:
        """The candidate's score; None where it does not fit, or cannot be among the best."""
        if partition in self.scores:
            return self.scores[partition]
        if not essential and self.scorer.used >= self.options.evaluations:
            raise _ExhaustedError
        ranked = self._ranked()
        limit = inf if essential or len(ranked) < self.options.shown else ranked[self.options.shown - 1].mean
        try:
            self.scores[partition] = self.scorer.score(partition, split, limit)
        except UnfitError as error:
            self.scores[partition], self.unfit[partition] = None, str(error)
        best = min([score.mean for score in [*ranked, self.scores[partition]] if score is not None], default=inf)
        self.progress(self.scorer.used, self.options.evaluations, best)
        return self.scores[partition]

    def _descend(self, setting: Setting) -> None:
        """Change K of two modules, B of one or the way to find bounds, the best change first, until none helps."""
        current = self._try(self._partition(setting), setting.split)
        while True:
            best, place = current, setting
            others = {self._partition(other): other for other in self.space.neighbours(setting)}
            for partition in self._likeliest(others):
                score = self._try(partition, others[partition].split)
                if _is_better(score, best):
                    best, place = score, others[partition]
            if place == setting:
                return
            current, setting = best, place

    def _likeliest(self, partitions: Iterable[Partition]) -> list[Partition]:
        """In the order of the work that they leave on the busiest rank, so that the rest is left early."""
        return sorted(dict.fromkeys(partitions), key=lambda own: fsum(self.scorer.least(own)))

    def _partition(self, setting: Setting) -> Partition:
        laps = dict(zip(self.names, setting.laps, strict=True))
        parts = self.options.parts
        chunks = {
            name: len(parts[name]) if name in parts else chunk_count(self.model, name, self.ranks, own)
            for name, own in laps.items()
        }
        seconds = self._seconds(setting.limits)
        if setting.split == EVEN:
            bounds = {name: even_bounds(self.layers[name], count) for name, count in chunks.items()}
        elif setting.split == BOTTLENECK:
            bounds = {name: bottleneck_bounds(seconds[name], count) for name, count in chunks.items()}
        else:
            homes = chunk_ranks(self.model, chunks, self.ranks, setting.placement)
            bounds = levelled_bounds(seconds, homes, self.ranks)
        bounds |= {name: (0, *accumulate(own)) for name, own in parts.items()}
        return self._cut(setting.limits, bounds, setting.placement)

    def _seconds(self, limits: tuple[int | None, ...]) -> dict[str, list[float]]:
        if limits not in self.seconds:
            cut = replace(self.plain, sub_microbatch=tuple(zip(self.names, limits, strict=True)))
            self.seconds[limits] = self.scorer.layer_seconds(cut)
        return self.seconds[limits]

    def _cut(self, limits: tuple[int | None, ...], bounds: Mapping[str, tuple[int, ...]], placement: str) -> Partition:
        parts = {name: [stop - start for start, stop in pairwise(own)] for name, own in bounds.items()}
        sizes = dict(zip(self.names, limits, strict=True))
        return make_partition(self.model, self.ranks, None, sizes, parts=parts, placement=placement)

    def _refine(self) -> None:
        """From the best of each K and placement: shift single layers over bounds and change B until neither helps."""
        best: dict[tuple[tuple[str, int], ...], Score] = {}
        for score in self._ranked():
            best.setdefault(tuple((chunk.module, chunk.rank) for chunk in score.partition.chunks), score)
        for score in list(best.values())[:_REFINED]:
            current: Score | None = score
            while current is not None:
                current = self._shifted(current)

    def _shifted(self, score: Score) -> Score | None:
        """The first shift of a layer, or change of B with the same bounds, that helps; else of one over two bounds."""
        own = score.partition
        limits = tuple(limit for _, limit in own.sub_microbatch)
        found = [
            replace(own, sub_microbatch=tuple(zip(self.names, other, strict=True)))
            for other in self.space.other_limits(limits)
        ]
        bounds = {name: (0, *(chunk.stop for chunk in own.of(name))) for name in self.names}
        free = {name: cuts for name, cuts in bounds.items() if name not in self.options.parts}
        for width in (1, 2):
            for name, cuts in moves(free, width):
                chunks = tuple(
                    replace(chunk, start=cuts[chunk.index], stop=cuts[chunk.index + 1])
                    if chunk.module == name
                    else chunk
                    for chunk in own.chunks
                )
                found.append(replace(own, chunks=chunks))
            for partition in self._likeliest(found):
                other = self._try(partition, SHIFTED)
                if other is not None and _is_better(other, score):
                    return other
            found = []
        return None


def _sorted(scores: Iterable[Score]) -> list[Score]:
    return sorted(scores, key=lambda score: (score.mean, len(score.partition.chunks)))


def _is_better(score: Score | None, than: Score | None) -> bool:
    return score is not None and (than is None or score.mean < than.mean * (1 - _LEAST))


def _distinct(ranked: Sequence[Score]) -> list[Score]:
    """One of those whose schedules are alike: a B that no microbatch exceeds cuts nothing."""
    return list({(score.makespans, score.activations): score for score in reversed(ranked)}.values())[::-1]
