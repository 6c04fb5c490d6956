"""K, B and layer bounds by search: every candidate is scored by schedules of the same sample batches.

The search has no randomness of its own: it starts from the paper's rule and from the plainest
partitions, changes K of two modules, B of one, or how bounds are found, as long as that lowers the
mean predicted iteration, then shifts single layers. What cannot be among the best by the work on its
busiest rank is never scheduled, which loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import fsum, inf

from ds_dip.models.partition import Partition, PartitionError
from ds_dip.partition.bounds import bottleneck_bounds, even_bounds, levelled_bounds, shifts
from ds_dip.partition.chunks import make_partition
from ds_dip.partition.rule import rule_partition
from ds_dip.partition.scoring import Score, Scorer, UnfitError
from ds_dip.partition.space import BOTTLENECK, EVEN, SearchOptions, Setting, Space

RULE, SHIFTED = "rule", "shifted"
#: An improvement of less than this share is none.
_LEAST = 1e-9
#: How many combinations of K have the layers of their best partition shifted.
_REFINED = 8

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


def search(scorer: Scorer, ranks: int, options: SearchOptions | None = None, progress: Progress | None = None) -> Found:
    """The best partition found for ``ranks`` pipeline ranks, never worse than the rule's unless options exclude that.

    Deterministic in the scorer's workload and costs and in the options. Raises PartitionError where a
    module has fewer layers than ranks, where an option does not fit the model, or where nothing fits
    into memory.
    """
    return _Search(scorer, ranks, options or SearchOptions(), progress or (lambda *_: None)).run()


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

    def run(self) -> Found:
        rule = rule_partition(self.model, self.ranks, self.scorer.costs, self.scorer.workload, self.most)
        first = self._try(rule, RULE, essential=True)
        starts = self.space.starts(rule)
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
        return Found(
            candidates=tuple(_distinct(ranked)[: self.options.shown]),
            rule=first,
            rule_refusal=self.unfit.get(rule, ""),
            tried=len(self.scores),
            pruned=sum(score is None for score in self.scores.values()) - len(self.unfit),
            unfit=len(self.unfit),
            schedules=self.scorer.used,
        )

    def _ranked(self) -> list[Score]:
        """Candidates that the options allow, fastest first; of equals the one with the fewest chunks."""
        scores = [score for score in self.scores.values() if score is not None and self.space.holds(score.partition)]
        return sorted(scores, key=lambda score: (score.mean, len(score.partition.chunks)))

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
        chunks = {name: len(parts[name]) if name in parts else self.ranks * own for name, own in laps.items()}
        seconds = self._seconds(setting.limits)
        if setting.split == EVEN:
            bounds = {name: even_bounds(self.layers[name], count) for name, count in chunks.items()}
        elif setting.split == BOTTLENECK:
            bounds = {name: bottleneck_bounds(seconds[name], count) for name, count in chunks.items()}
        else:
            bounds = levelled_bounds(seconds, chunks, self.ranks)
        bounds |= {name: (0, *accumulate(own)) for name, own in parts.items()}
        return self._cut(setting.limits, bounds)

    def _seconds(self, limits: tuple[int | None, ...]) -> dict[str, list[float]]:
        if limits not in self.seconds:
            cut = replace(self.plain, sub_microbatch=tuple(zip(self.names, limits, strict=True)))
            self.seconds[limits] = self.scorer.layer_seconds(cut)
        return self.seconds[limits]

    def _cut(self, limits: tuple[int | None, ...], bounds: Mapping[str, tuple[int, ...]]) -> Partition:
        parts = {name: [stop - start for start, stop in pairwise(own)] for name, own in bounds.items()}
        return make_partition(self.model, self.ranks, None, dict(zip(self.names, limits, strict=True)), parts=parts)

    def _refine(self) -> None:
        """From the best of each combination of K: shift single layers over bounds and change B until neither helps."""
        best: dict[tuple[int, ...], Score] = {}
        for score in self._ranked():
            best.setdefault(tuple(len(score.partition.of(name)) for name in self.names), score)
        for score in list(best.values())[:_REFINED]:
            current: Score | None = score
            while current is not None:
                current = self._shifted(current)

    def _shifted(self, score: Score) -> Score | None:
        """The first shift of a layer, or change of B with the same bounds, that helps."""
        limits = tuple(limit for _, limit in score.partition.sub_microbatch)
        bounds = {name: (0, *(chunk.stop for chunk in score.partition.of(name))) for name in self.names}
        found = [self._cut(other, bounds) for other in self.space.other_limits(limits)]
        for name, place, step in shifts({n: own for n, own in bounds.items() if n not in self.options.parts}):
            cuts = list(bounds[name])
            cuts[place] += step
            found.append(self._cut(limits, bounds | {name: tuple(cuts)}))
        for partition in self._likeliest(found):
            other = self._try(partition, SHIFTED)
            if other is not None and _is_better(other, score):
                return other
        return None


def _is_better(score: Score | None, than: Score | None) -> bool:
    return score is not None and (than is None or score.mean < than.mean * (1 - _LEAST))


def _distinct(ranked: Sequence[Score]) -> list[Score]:
    """One of those whose schedules are alike: a B that no microbatch exceeds cuts nothing."""
    return list({(score.makespans, score.activations): score for score in reversed(ranked)}.values())[::-1]
