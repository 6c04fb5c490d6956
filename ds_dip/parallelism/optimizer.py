"""The best layout: closed forms choose what is simulated, simulations on more and more batches choose among that.

There is no randomness beyond the batches' seed. The layout of the paper's objective is simulated too, on the same held
out batches that rank the best, so the answer is never slower on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf

import numpy as np
import numpy.typing as npt

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.partition import PartitionError
from ds_dip.parallelism import closed
from ds_dip.parallelism.groups import tails_of
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import DISAGGREGATED, PLACEMENTS, SEPARATED, Layout
from ds_dip.parallelism.placing import problem_of
from ds_dip.parallelism.simulation import Prediction, Simulator
from ds_dip.parallelism.space import Options, columns, laps
from ds_dip.partition.scoring import Scheduler, UnfitError
from ds_dip.scheduling import BaselineError, InfeasibleError, ProblemError

Ints = npt.NDArray[np.int64]
#: Told after every layout: those done, those expected in all, seconds of the best mean iteration.
Progress = Callable[[int, int, float], None]
#: Layouts of the paper's objective that are tried until one fits.
_WALKED = 400
#: Of the layouts of one round that are looked at again in the next, and neighbours of each that join them.
_KEPT, _NEAR = 3, 6
#: Of each placement at least so many are searched around.
_SOME = 2
#: For each layout that is simulated first: so many are looked at, for so many that memory holds.
_SEARCHED, _BOUNDED = 10, 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated.

    ``pool`` layouts of each placement on one batch, the best of them on ``batches`` batches, ``shown`` and as many more
    on ``held_out`` others with every replica. A space of at most ``exhaustive`` layouts is simulated whole. ``seed``
    draws batches. Not ``balanced``, samples go to replicas and microbatches in turn; ``fixed``, ranks run 1F1B.
    """

    pool: int = 30
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


@dataclass(frozen=True, slots=True)
class Found:
    """``candidates`` are the best layouts, fastest first, predicted on the held-out batches.

    ``mean_point`` is the layout of the paper's objective, predicted on the same batches; None where none of it fits.
    ``layouts`` were in the space, ``simulated`` of them at least once; ``unfit`` of these cannot run, ``refusal`` says
    why the first could not. ``schedules`` were made.
    """

    candidates: tuple[Prediction, ...]
    mean_point: Prediction | None
    layouts: int
    simulated: int
    unfit: int
    refusal: str
    schedules: int

    @property
    def best(self) -> Prediction:
        """The answer."""
        return self.candidates[0]


class LayoutError(ValueError):
    """No layout can run; the message says why the most promising one cannot, and what to do."""


def optimize(
    job: Job,
    scheduler: Scheduler,
    options: Options | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
    *,
    mean_point: bool = False,
) -> Found:
    """The layouts with the least mean iteration, every one holding the heaviest batch of the data.

    With ``mean_point`` they are ranked by the paper's objective instead. Deterministic in all arguments.
    Raises LayoutError where nothing fits.
    """
    own = _Search(job, scheduler, options or Options(), effort or Effort(), progress or (lambda *_: None))
    return own.by_mean_point() if mean_point else own.run()


@dataclass
class _Search:
    job: Job
    scheduler: Scheduler
    options: Options
    effort: Effort
    progress: Progress
    unfit: dict[Layout, str] = field(default_factory=dict)
    tried: set[Layout] = field(default_factory=set)
    expected: int = 0
    best: float = inf

    def __post_init__(self) -> None:
        job, effort = self.job, self.effort
        self.space = columns(job, self.options)
        if not len(self.space):
            raise LayoutError(
                f"no layout of {job.model.name} uses all of {job.cluster.gpus} GPUs for a global batch of {job.batch}: "
                "give a batch that has more divisors, or another number of GPUs"
            )
        self.means = closed.Means(job)
        steps = range(effort.batches + effort.held_out)
        drawn = [job.drawn(step, effort.seed) for step in steps]
        self.scorer, self.final = (
            Simulator(job, own, balanced=effort.balanced, fixed=effort.fixed)
            for own in (drawn[: effort.batches], drawn[effort.batches :])
        )
        paper = closed.paper(job, self.means, self.space)
        #: By the paper's objective: its own placement first, what does not fit at the mean point left out.
        order = np.lexsort((paper, ~self.space.disaggregated))
        self.paper = [int(row) for row in order if np.isfinite(paper[row])]

    def run(self) -> Found:
        """By simulation."""
        rows = self._fitting()
        every = [own for row in rows for own in self._laps(row)] if len(rows) <= self.effort.exhaustive else []
        whole = every and len(every) <= self.effort.exhaustive
        pool = every if whole else self._pool(rows)
        self.expected = len(pool) + 2 * self.effort.shown
        if not whole:
            ranked = self._best(pool, batches=1)
            kept = [own.layout for own in ranked[: max(len(ranked) // _KEPT, 2 * self.effort.shown)]]
            # Some of each placement: one whose first layouts are better does not keep the other from being searched.
            some = [[own.layout for own in ranked if own.layout.placement == each][:_SOME] for each in PLACEMENTS]
            starts = dict.fromkeys([*kept[: self.effort.shown], *some[0], *some[1]])
            around = self._around(list(starts), rows)
            self.expected = len(self.tried) + len(kept) + len(around) + 2 * self.effort.shown
            near = [own.layout for own in self._best(around, batches=1)][: self.effort.shown]
            ranked = self._best([*kept, *near], batches=None)
            pool = [own.layout for own in ranked[: 2 * self.effort.shown]]
            # Strategies are chosen already.
            final = [own for layout in pool if (own := self._predict(self.final, layout)) is not None]
        else:
            final = [own for layout in pool for own in self._strategies(self.final, layout, whole=True)]
        mean_point = self._mean_point()
        if mean_point is not None:
            final.append(mean_point)
        return self._found(self._confirmed(_ranked(final)), mean_point)

    def by_mean_point(self) -> Found:
        """By the paper's objective."""
        found: list[Prediction] = []
        for row in self.paper[:_WALKED]:
            if len(found) < self.effort.shown:
                found += self._strategies(self.final, self._plain(row))
        found = self._confirmed(found)
        return self._found(found, found[0] if found else None)

    def _confirmed(self, ranked: list[Prediction]) -> list[Prediction]:
        """Without those before the first whose heaviest batch the planner itself can schedule within memory."""
        for place, own in enumerate(ranked):
            room = self.final.room(own.layout, own.partition)
            heaviest = self.final.cut(own.layout, -1)[0]
            tails = tails_of(self.job, own.layout, own.partition)
            try:
                self.scheduler(problem_of(self.job, own.layout, own.partition, heaviest, room.left, tails))
            except (InfeasibleError, ProblemError, BaselineError) as error:
                self.unfit[own.layout] = f"the heaviest batch of the data on {own.layout}: {error}"
                continue
            return ranked[place:]
        return []

    def _found(self, final: Sequence[Prediction], mean_point: Prediction | None) -> Found:
        refusal = next(iter(self.unfit.values()), "")
        if not final:
            gpus = self.job.cluster.gpus
            least = f"no layout of {self.job.model.name} on {gpus} GPU{'s' * (gpus > 1)} fits: "
            if not refusal:
                held, memory = float(self._held().min()), self.job.cluster.memory
                assert memory is not None
                raise LayoutError(
                    f"{least}its parameters, gradients and optimizer state are more than they hold, "
                    f"{held / 1e9:.3g} GB a GPU in the leanest layout, and each has {memory / 1e9:.3g} GB; use more "
                    "GPUs, or such as have more memory"
                )
            smaller = ", or a smaller global batch" if self.job.batch > 1 else ""
            raise LayoutError(f"{least}{refusal}; use more GPUs{smaller}")
        return Found(
            candidates=tuple(final[: self.effort.shown]),
            mean_point=mean_point,
            layouts=len(self.space),
            simulated=len(self.tried),
            unfit=len({replace(own, strategy=STRATEGIES[0]) for own in self.unfit}),
            refusal="" if not self.unfit else refusal,
            schedules=self.scorer.used + self.final.used,
        )

    def _fitting(self) -> Ints:
        """Rows whose mean rank holds its state: where that is too much, the fullest rank does not either."""
        memory = self.job.cluster.memory
        if memory is None:
            return np.arange(len(self.space))
        return np.nonzero(self._held() < memory)[0]

    def _held(self) -> closed.Floats:
        """Bytes of state on each row's mean rank, of the fuller mesh."""
        encoder, backbone = closed.states(self.job, self.means, self.space)
        return np.where(self.space.disaggregated, np.maximum(encoder, backbone), encoder + backbone)

    def _pool(self, rows: Ints) -> list[Layout]:
        """What is simulated first: the best of each placement by what is expected, and of the paper's objective."""
        seconds = closed.expected(self.job, self.means, self.space.take(rows))
        found: list[Layout] = []
        for apart in (False, True):
            own = rows[self.space.disaggregated[rows] == apart]
            order = own[np.argsort(seconds[self.space.disaggregated[rows] == apart], kind="stable")]
            # A placement with few layouts is simulated whole.
            small = order if len(order) <= self.effort.exhaustive else order[:0]
            few = [layout for row in small for layout in self._laps(int(row))]
            if not 0 < len(few) <= self.effort.exhaustive:
                bounded = ((self._least(row), row) for row in order[: _SEARCHED * self.effort.pool].tolist())
                fitting = islice((own for own in bounded if own[0] < inf), _BOUNDED * self.effort.pool)
                every = [list(self._laps(row)) for _, row in sorted(fitting)[: self.effort.pool]]
                few = [layout for own in every for layout in dict.fromkeys((own[0], own[-1]))]
            found += few
        found += [self._plain(row) for row in self.paper[: self.effort.shown]]
        return list(dict.fromkeys(found))

    def _least(self, row: int) -> float:
        """What no order of a row is below, by its best memory strategy; infinite where none holds a microbatch."""
        plain, best = self._plain(row), inf
        for strategy in reversed(STRATEGIES):
            layout = replace(plain, strategy=strategy)
            try:
                best = min(best, self.scorer.least(layout))
            except (UnfitError, PartitionError) as error:
                self.unfit[layout] = str(error)
        return best

    def _plain(self, row: int) -> Layout:
        return self.space.layout(row, (1,) * len(self.job.model.modules), STRATEGIES[0])

    def _laps(self, row: int) -> Iterable[Layout]:
        plain = self._plain(row)
        return (replace(plain, laps=own) for own in laps(self.job, plain, self.options))

    def _around(self, kept: Sequence[Layout], rows: Ints) -> list[Layout]:
        """Layouts near these: other K, and the nearest other meshes and microbatches."""
        logs = np.log2(np.concatenate([self.space.encoder, self.space.backbone], axis=1)[rows])
        counts = np.log2(self.space.microbatches[rows])
        found: list[Layout] = []
        for layout in kept:
            plain = replace(layout, strategy=STRATEGIES[0])
            found += [replace(plain, laps=own) for own in laps(self.job, plain, self.options)]
            meshes = (layout.encoder, layout.backbone)
            place = np.log2([size for mesh in meshes for size in (mesh.tensor, mesh.pipeline, mesh.data)])
            far = np.abs(logs - place).sum(axis=1) + np.abs(counts - np.log2(layout.microbatches))
            far[self.space.disaggregated[rows] != (layout.placement == DISAGGREGATED)] = inf
            for row in rows[np.argsort(far, kind="stable")[1 : 1 + _NEAR]]:
                near = self._plain(int(row))
                if near.placement == SEPARATED and near.backbone.pipeline == layout.backbone.pipeline:
                    near = replace(near, laps=layout.laps)
                found.append(near)
        known = {replace(own, strategy=STRATEGIES[0]) for own in self.tried}
        return [own for own in dict.fromkeys(found) if own not in known]

    def _best(self, layouts: Iterable[Layout], batches: int | None) -> list[Prediction]:
        """Predictions on the search's batches, with the best memory strategy of each; the slowest are left early."""
        found: list[Prediction] = []
        kept = 2 * self.effort.shown
        for layout in layouts:
            limit = inf if len(found) < kept else _ranked(found)[kept - 1].mean
            found += self._strategies(self.scorer, layout, batches=batches, limit=limit)
        return _ranked(found)

    def _strategies(
        self, scorer: Simulator, layout: Layout, *, batches: int | None = None, limit: float = inf, whole: bool = False
    ) -> list[Prediction]:
        """A layout by the memory strategy that makes it fastest; all strategies where the ``whole`` space is asked for.

        One that computes less again and never waits for memory is not beaten by the others.
        """
        found: list[Prediction] = []
        start = STRATEGIES.index(layout.strategy)
        for strategy in STRATEGIES[start:]:
            own = self._predict(scorer, replace(layout, strategy=strategy), batches=batches, limit=limit)
            if own is not None:
                found.append(own)
                limit = min(limit, inf if whole else own.mean)
                if not own.short:
                    break
        return found if whole else _ranked(found)[:1]

    def _predict(
        self, scorer: Simulator, layout: Layout, *, batches: int | None = None, limit: float = inf
    ) -> Prediction | None:
        if layout in self.unfit:
            return None
        self.tried.add(layout)
        found = None
        try:
            found = scorer.predict(layout, batches=batches, every=scorer is self.final, limit=limit)
        except (UnfitError, PartitionError) as error:
            self.unfit[layout] = str(error)
        if found is not None:
            self.best = min(self.best, found.mean)
        self.progress(len(self.tried), max(self.expected, len(self.tried)), self.best)
        return found

    def _mean_point(self) -> Prediction | None:
        """The layout of the paper's objective: the first of its order that holds the heaviest batch."""
        for row in self.paper[:_WALKED]:
            if own := self._strategies(self.final, self._plain(row)):
                return own[0]
        return None


def _ranked(found: Iterable[Prediction]) -> list[Prediction]:
    """Fastest first, the plainest of equals, each layout once."""
    best: dict[Layout, Prediction] = {}
    for own in found:
        best.setdefault(own.layout, own)
    return sorted(best.values(), key=lambda own: (own.mean, own.layout.key))
