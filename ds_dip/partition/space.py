"""The settings that are searched: K and B of every module, and how bounds are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model
from ds_dip.partition.chunks import PLACEMENTS, chunk_ranks
from ds_dip.partition.rule import sub_microbatch_sizes

#: How bounds are found: as many layers a chunk, the least slowest chunk, or level sums over each rank.
EVEN, BOTTLENECK, LEVELLED = SPLITS = ("even", "bottleneck", "levelled")


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """``evaluations`` schedules at most beyond the starts, K at most ``most_laps``, ``shown`` candidates kept.

    ``laps``, ``sub_microbatch`` and ``parts`` (layers a chunk) fix K, B and bounds of the modules they
    name; with all of them fixed nothing is searched, and the candidate is scored beside the rule.
    ``placements`` are the ways chunks go over ranks that are searched.
    """

    evaluations: int = 3000
    most_laps: int = 8
    shown: int = 8
    laps: Mapping[str, int] = field(default_factory=dict)
    sub_microbatch: Mapping[str, int | None] = field(default_factory=dict)
    parts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    placements: tuple[str, ...] = PLACEMENTS

    def __post_init__(self) -> None:
        for name in ("evaluations", "most_laps", "shown"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if not self.placements or not set(self.placements) <= set(PLACEMENTS):
            raise ValueError(f"placements are {self.placements}: name some of {', '.join(PLACEMENTS)}")


@dataclass(frozen=True, slots=True)
class Setting:
    """K and B of every module in order, how bounds are found, and how chunks go over ranks."""

    laps: tuple[int, ...]
    limits: tuple[int | None, ...]
    split: str
    placement: str


class Space:
    """All settings of a model on ``ranks`` ranks that the options leave; ``most`` instances a microbatch, by module."""

    def __init__(self, model: Model, ranks: int, options: SearchOptions, most: Mapping[str, int]) -> None:
        self._model, self._ranks, self._options, self._most = model, ranks, options, most
        self.names = tuple(module.name for module in model.modules)
        self.laps = {name: self._laps(name) for name in self.names}
        self.limits = {name: self._limits(name) for name in self.names}

    def _laps(self, name: str) -> tuple[int, ...]:
        if name in self._options.parts:
            return (-(-len(self._options.parts[name]) // self._ranks),)
        if name in self._options.laps:
            return (self._options.laps[name],)
        most = max(1, len(self._model.module(name).layers) // self._ranks)
        return tuple(range(1, min(self._options.most_laps, most) + 1))

    def _limits(self, name: str) -> tuple[int | None, ...]:
        if name in self._options.sub_microbatch:
            return (self._options.sub_microbatch[name],)
        return (None,) if self._model.upstream(name) else (None, *sub_microbatch_sizes(self._most[name] - 1))

    def starts(self, rule: Partition) -> list[Setting]:
        """The rule's K and B, and K of 1 with and without its B, as far as the options leave a choice."""
        by_rule = dict(rule.sub_microbatch)
        ruled = {name: rule.of(name)[-1].segment + 1 for name in self.names}
        found = []
        for laps, cut, split in ((True, True, BOTTLENECK), (False, True, BOTTLENECK), (False, False, LEVELLED)):
            chosen = [ruled[name] if laps and ruled[name] in own else own[0] for name, own in self.laps.items()]
            limits = [by_rule[name] if cut and by_rule[name] in own else own[0] for name, own in self.limits.items()]
            found += [Setting(tuple(chosen), tuple(limits), split, own) for own in self._options.placements]
        return list(dict.fromkeys(found))

    def neighbours(self, setting: Setting) -> Iterator[Setting]:
        """Settings that differ in the split and placement, in B of one module, or in K of two."""
        for split, placement in product(SPLITS, self._options.placements):
            yield replace(setting, split=split, placement=placement)
        for limits in self.other_limits(setting.limits):
            yield replace(setting, limits=limits)
        numbers = range(len(self.names))
        for one, other in combinations(numbers, 2) if len(numbers) > 1 else [(0, 0)]:
            for pair in product(self.laps[self.names[one]], self.laps[self.names[other]]):
                laps = list(setting.laps)
                laps[one], laps[other] = pair
                # Where chunks turn depends on how many laps there are: both change at once.
                for split, placement in product(SPLITS, self._options.placements):
                    yield replace(setting, laps=tuple(laps), split=split, placement=placement)

    def other_limits(self, limits: tuple[int | None, ...]) -> Iterator[tuple[int | None, ...]]:
        """The same B but for one module."""
        for place, name in enumerate(self.names):
            for limit in self.limits[name]:
                yield (*limits[:place], limit, *limits[place + 1 :])

    def holds(self, partition: Partition) -> bool:
        """Whether the options allow a partition."""
        limits = dict(partition.sub_microbatch)
        homes = {name: tuple(chunk.rank for chunk in partition.of(name)) for name in self.names}
        chunks = {name: len(own) for name, own in homes.items()}
        allowed = self._options.placements
        if homes not in [chunk_ranks(self._model, chunks, self._ranks, placement) for placement in allowed]:
            return False
        for name in self.names:
            chain = partition.of(name)
            if chain[-1].segment + 1 not in self.laps[name] or limits.get(name) not in self.limits[name]:
                return False
            parts = self._options.parts.get(name)
            if parts is not None and [own.stop - own.start for own in chain] != list(parts):
                return False
        return True
