"""K, B and layer bounds by search: every candidate is scored by schedules of the same sample batches.

The search has no randomness of its own: it starts from the paper's rule and from the plainest
partitions, changes one module's K, one module's B, or how bounds are found, as long as that lowers the
mean predicted iteration, then shifts single layers. What cannot be among the best by the work on its
busiest rank is never scheduled, which loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import fsum, inf

from ds_dip.models.partition import Partition, PartitionError
from ds_dip.partition.bounds import bottleneck_bounds, even_bounds, levelled_bounds, shifts
from ds_dip.partition.chunks import make_partition
from ds_dip.partition.rule import rule_partition, sub_microbatch_sizes
from ds_dip.partition.scoring import Score, Scorer, UnfitError

#: How bounds are found: as many layers a chunk, the least slowest chunk, or level sums over each rank.
SPLITS = ("even", "bottleneck", "levelled")
RULE, SHIFTED = "rule", "shifted"
#: An improvement of less than this share is none.
_LEAST = 1e-9
#: How many of the best settings have their layers shifted.
_REFINED = 3

#: Told after every candidate: schedules made, the budget, seconds of the best mean iteration.
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``evaluations`` schedules at most beyond the starts, K at most ``most_laps``, ``shown`` candidates kept.

    ``laps``, ``sub_microbatch`` and ``parts`` (layers a chunk) fix K, B and bounds of the modules they
    name; with all of them fixed nothing is searched, and the candidate is scored beside the rule.
    """

    evaluations: int = 3000
    most_laps: int = 8
    shown: int = 8
    laps: Mapping[str, int] = field(default_factory=dict)
    sub_microbatch: Mapping[str, int | None] = field(default_factory=dict)
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("evaluations", "most_laps", "shown"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")


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


@dataclass(frozen=True, slots=True)
class _Setting:
    """K and B of every module in order, and how bounds are found."""

    laps: tuple[int, ...]
    limits: tuple[int | None, ...]
    split: str


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
        self.laps = {name: self._laps(name) for name in self.names}
        self.limits = {name: self._limits(name) for name in self.names}
        self.scores: dict[Partition, Score | None] = {}
        self.unfit: dict[Partition, str] = {}
        self.seconds: dict[tuple[int | None, ...], dict[str, list[float]]] = {}

    def run(self) -> Found:
        rule = rule_partition(self.model, self.ranks, self.scorer.costs, self.scorer.workload, self.most)
        first = self._try(rule, RULE, essential=True)
        starts = self._starts(rule)
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

    def _laps(self, name: str) -> tuple[int, ...]:
        """The numbers K that are searched."""
        if name in self.options.parts:
            return (-(-len(self.options.parts[name]) // self.ranks),)
        if name in self.options.laps:
            return (self.options.laps[name],)
        return tuple(range(1, min(self.options.most_laps, self.layers[name] // self.ranks) + 1))

    def _limits(self, name: str) -> tuple[int | None, ...]:
        """The sizes B that are searched."""
        if name in self.options.sub_microbatch:
            return (self.options.sub_microbatch[name],)
        return (None,) if self.model.upstream(name) else (None, *sub_microbatch_sizes(self.most[name] - 1))

    def _starts(self, rule: Partition) -> list[_Setting]:
        """The rule's K and B, and K of 1 with and without its B, as far as the options leave a choice."""
        by_rule = dict(rule.sub_microbatch)
        ruled = {name: rule.of(name)[-1].segment + 1 for name in self.names}
        starts = []
        for laps, cut, split in ((True, True, SPLITS[1]), (False, True, SPLITS[1]), (False, False, SPLITS[2])):
            chosen = [ruled[name] if laps and ruled[name] in self.laps[name] else self.laps[name][0] for name in ruled]
            limits = [by_rule[name] if cut and by_rule[name] in own else own[0] for name, own in self.limits.items()]
            starts.append(_Setting(tuple(chosen), tuple(limits), split))
        return list(dict.fromkeys(starts))

    def _ranked(self) -> list[Score]:
        """Candidates that the options allow, fastest first; of equals the one with the fewest chunks."""
        scores = [score for score in self.scores.values() if score is not None and self._allowed(score.partition)]
        return sorted(scores, key=lambda score: (score.mean, len(score.partition.chunks)))

    def _allowed(self, partition: Partition) -> bool:
        limits = dict(partition.sub_microbatch)
        for name in self.names:
            chain = partition.of(name)
            if chain[-1].segment + 1 not in self.laps[name] or limits.get(name) not in self.limits[name]:
                return False
            if name in self.options.parts and [own.stop - own.start for own in chain] != list(self.options.parts[name]):
                return False
        return True

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

    def _descend(self, setting: _Setting) -> None:
        """Change one thing at a time, the best change first, until none helps."""
        current = self._try(self._partition(setting), setting.split)
        while True:
            best, place = current, setting
            for other in self._neighbours(setting):
                score = self._try(self._partition(other), other.split)
                if score is not None and (best is None or score.mean < best.mean * (1 - _LEAST)):
                    best, place = score, other
            if place == setting:
                return
            current, setting = best, place

    def _neighbours(self, setting: _Setting) -> Iterator[_Setting]:
        for split in SPLITS:
            yield replace(setting, split=split)
        for place, name in enumerate(self.names):
            for laps in self.laps[name]:
                yield replace(setting, laps=(*setting.laps[:place], laps, *setting.laps[place + 1 :]))
            for limit in self.limits[name]:
                yield replace(setting, limits=(*setting.limits[:place], limit, *setting.limits[place + 1 :]))

    def _partition(self, setting: _Setting) -> Partition:
        laps = dict(zip(self.names, setting.laps, strict=True))
        limits = dict(zip(self.names, setting.limits, strict=True))
        parts = self.options.parts
        chunks = {name: len(parts[name]) if name in parts else self.ranks * own for name, own in laps.items()}
        seconds = self._seconds(setting.limits)
        if setting.split == "even":
            bounds = {name: even_bounds(self.layers[name], count) for name, count in chunks.items()}
        elif setting.split == "bottleneck":
            bounds = {name: bottleneck_bounds(seconds[name], count) for name, count in chunks.items()}
        else:
            bounds = levelled_bounds(seconds, chunks, self.ranks)
        bounds |= {name: (0, *accumulate(own)) for name, own in parts.items()}
        return self._cut(limits, bounds)

    def _seconds(self, limits: tuple[int | None, ...]) -> dict[str, list[float]]:
        if limits not in self.seconds:
            cut = replace(self.plain, sub_microbatch=tuple(zip(self.names, limits, strict=True)))
            self.seconds[limits] = self.scorer.layer_seconds(cut)
        return self.seconds[limits]

    def _cut(self, limits: dict[str, int | None], bounds: dict[str, tuple[int, ...]]) -> Partition:
        parts = {name: [stop - start for start, stop in pairwise(own)] for name, own in bounds.items()}
        return make_partition(self.model, self.ranks, None, limits, self.scorer.costs, parts=parts)

    def _refine(self) -> None:
        """Shift single layers of the best few over their chunks' bounds, likeliest first, until no shift helps."""
        for score in self._ranked()[:_REFINED]:
            current: Score | None = score
            while current is not None:
                current = self._shifted(current)

    def _shifted(self, score: Score) -> Score | None:
        """The first shift that helps."""
        limits = dict(score.partition.sub_microbatch)
        bounds = {name: (0, *(chunk.stop for chunk in score.partition.of(name))) for name in self.names}
        found = []
        movable = {name: own for name, own in bounds.items() if name not in self.options.parts}
        for name, place, step in shifts(movable):
            cuts = list(bounds[name])
            cuts[place] += step
            found.append(self._cut(limits, bounds | {name: tuple(cuts)}))
        for partition in sorted(found, key=lambda own: fsum(self.scorer.least(own))):
            other = self._try(partition, SHIFTED)
            if other is not None and other.mean < score.mean * (1 - _LEAST):
                return other
        return None


def _distinct(ranked: Sequence[Score]) -> list[Score]:
    """One of those whose schedules are alike: a B that no microbatch exceeds cuts nothing."""
    return list({(score.makespans, score.activations): score for score in reversed(ranked)}.values())[::-1]
