"""Layouts tried on batches: how much of it there is, and what is known of those that were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from math import inf

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.partition import PartitionError
from ds_dip.parallelism.layout import Layout
from ds_dip.parallelism.simulation import Prediction, Simulator
from ds_dip.partition.scoring import UnfitError

#: Told after every layout: those done, those expected in all, seconds of the best mean iteration.
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated.

    ``pool`` layouts of each placement on one batch, and what is reached from the ``shown`` best; the best of them on
    ``batches`` batches, ``shown`` and as many more on ``held_out`` others with every replica. A placement of at most
    ``exhaustive`` layouts is simulated whole. ``seed`` draws batches. Not ``balanced``, samples go to replicas and
    microbatches in turn; ``fixed``, ranks run 1F1B.
    """

    pool: int = 20
    batches: int = 3
    held_out: int = 4
    shown: int = 10
    exhaustive: int = 40
    seed: int = 0
    balanced: bool = True
    fixed: bool = False

    def __post_init__(self) -> None:
        for name in ("pool", "batches", "held_out", "shown"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")


@dataclass
class Trials:
    """Predictions on the batches of a search (``scorer``) and on held-out ones with every replica (``final``).

    ``unfit`` says why layouts cannot run, ``tried`` are all that were simulated, ``expected`` so many in all.
    """

    scorer: Simulator
    final: Simulator
    progress: Progress
    unfit: dict[Layout, str] = field(default_factory=dict)
    tried: set[Layout] = field(default_factory=set)
    expected: int = 0
    best: float = inf

    def least(self, plain: Layout) -> float:
        """What no order of a layout is below, by its best memory strategy; infinite where none holds a microbatch."""
        best = inf
        for strategy in STRATEGIES:
            layout = replace(plain, strategy=strategy)
            try:
                own, short = self.scorer.least(layout)
            except (UnfitError, PartitionError) as error:
                self.unfit[layout] = str(error)
                continue
            best = min(best, own)
            if not short:
                break
        return best

    def strategies(
        self, layout: Layout, *, batches: int | None = None, limit: float = inf, every: bool = False
    ) -> list[Prediction]:
        """A layout by the memory strategy that makes it fastest; nothing where none is below ``limit`` seconds.

        One that computes less again and never waits for memory is not beaten by the others.
        """
        found: list[Prediction] = []
        for strategy in STRATEGIES[STRATEGIES.index(layout.strategy) :]:
            own = self.predict(replace(layout, strategy=strategy), batches=batches, limit=limit, every=every)
            if own is not None:
                found, limit = [own], min(limit, own.mean)
                if not own.short:
                    break
        return found

    def predict(
        self, layout: Layout, *, batches: int | None = None, limit: float = inf, every: bool = False
    ) -> Prediction | None:
        """A prediction; None where the layout cannot run or is not below ``limit`` seconds."""
        if layout in self.unfit:
            return None
        self.tried.add(layout)
        found = None
        try:
            found = (self.final if every else self.scorer).predict(layout, batches=batches, every=every, limit=limit)
        except (UnfitError, PartitionError) as error:
            self.unfit[layout] = str(error)
        if found is not None:
            self.best = min(self.best, found.mean)
        self.progress(len(self.tried), max(self.expected, len(self.tried)), self.best)
        return found


def ranked(found: Iterable[Prediction]) -> list[Prediction]:
    """Fastest first, the plainest of equals, each layout once."""
    best: dict[Layout, Prediction] = {}
    for own in found:
        best.setdefault(own.layout, own)
    return sorted(best.values(), key=lambda own: (own.mean, own.layout.key))
