"""The best layout: every placement is searched by itself, and the best of all are ranked on held-out batches.

There is no randomness beyond the batches' seed. The layout of the paper's objective is simulated too, on the same held
out batches that rank the best, so the answer is never slower on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf

import numpy as np

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.parallelism import closed
from ds_dip.parallelism.groups import tails_of
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import CONTIGUOUS, DISAGGREGATED, PLACEMENTS, SEPARATED, Layout
from ds_dip.parallelism.local import Ints, Local
from ds_dip.parallelism.placing import problem_of
from ds_dip.parallelism.simulation import Prediction, Simulator
from ds_dip.parallelism.space import Options, columns
from ds_dip.parallelism.trials import Effort, Progress, Trials, ranked
from ds_dip.partition.scoring import Scheduler
from ds_dip.scheduling import BaselineError, InfeasibleError, ProblemError

__all__ = ["Effort", "Found", "LayoutError", "Progress", "optimize"]
#: Placements as the paper's objective comes to them, and layouts of each that are tried until one fits.
_PAPERS, _WALKED = (DISAGGREGATED, SEPARATED, CONTIGUOUS), 400


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


class _Search:
    def __init__(self, job: Job, scheduler: Scheduler, options: Options, effort: Effort, progress: Progress) -> None:
        self.job, self.scheduler, self.options, self.effort = job, scheduler, options, effort
        self.space = columns(job, options)
        if not len(self.space):
            which, more, gpus = "", "", job.cluster.gpus
            if SEPARATED not in self.options.placements:
                which = f"{' or '.join(self.options.placements)} "
                more = ", or allow separated layouts: one module, or one GPU, has no others"
            raise LayoutError(
                f"no {which}layout of {job.model.name} uses all of {gpus} GPU{'s' * (gpus > 1)} for a global batch of "
                f"{job.batch}: give a batch that has more divisors, or another number of GPUs{more}"
            )
        #: More than are shown: the first may turn out not to be planned within memory.
        self.kept = 2 * effort.shown
        self.means = closed.Means(job)
        steps = range(effort.batches + effort.held_out)
        drawn = [job.drawn(step, effort.seed) for step in steps]
        scorer, final = (
            Simulator(job, own, balanced=effort.balanced, fixed=effort.fixed)
            for own in (drawn[: effort.batches], drawn[effort.batches :])
        )
        self.trials = Trials(scorer, final, progress)
        paper = closed.paper(job, self.means, self.space)
        order = np.argsort(paper, kind="stable")
        order = order[np.isfinite(paper[order])]
        #: Rows of every placement by the paper's objective, its own first; without what does not fit at the mean point.
        self.paper = {own: order[self.space.of(own)[order]][:_WALKED].tolist() for own in _PAPERS}

    def run(self) -> Found:
        """By simulation, every placement as if it were the only one."""
        effort, trials, rows = self.effort, self.trials, self._fitting()
        seconds = closed.expected(self.job, self.means, self.space.take(rows))
        searches: list[Local] = []
        for placement in PLACEMENTS:
            here = self.space.of(placement)[rows]
            if here.any():
                paper = self.paper[placement][: effort.shown]
                more = self.space, rows[here], seconds[here], paper
                searches.append(Local(self.job, self.options, effort, trials, *more))
        trials.expected = sum(search.expected for search in searches)
        few = [replace(own, strategy=each) for search in searches for own in search.whole() for each in STRATEGIES]
        found = ranked(own for search in searches if not search.whole() for own in search.run())
        trials.expected = len(trials.tried) + len(few) + len(found)
        final: list[Prediction] = []
        for layout in (*(own.layout for own in found), *few):
            limit = inf if len(final) < self.kept else final[-1].mean
            if (one := trials.predict(layout, limit=limit, every=True)) is not None:
                final = ranked([*final, one])[: self.kept]
        means = [own for placement in _PAPERS if (own := self._mean_point(placement)) is not None]
        return self._found(self._confirmed(ranked([*final, *means])), means[0] if means else None)

    def by_mean_point(self) -> Found:
        """By the paper's objective."""
        found: list[Prediction] = []
        for row in chain.from_iterable(self.paper.values()):
            if len(found) < self.effort.shown:
                found += self.trials.strategies(self._plain(row), every=True)
        found = self._confirmed(found)
        return self._found(found, found[0] if found else None)

    def _confirmed(self, final: list[Prediction]) -> list[Prediction]:
        """Without those before the first whose heaviest batch the planner itself can schedule within memory."""
        for place, own in enumerate(final):
            room = self.trials.final.room(own.layout, own.partition)
            heaviest = self.trials.final.cut(own.layout, -1)[0]
            tails = tails_of(self.job, own.layout, own.partition)
            try:
                self.scheduler(problem_of(self.job, own.layout, own.partition, heaviest, room.left, tails))
            except (InfeasibleError, ProblemError, BaselineError) as error:
                self.trials.unfit[own.layout] = f"the heaviest batch of the data on {own.layout}: {error}"
                continue
            return final[place:]
        return []

    def _found(self, final: Sequence[Prediction], mean_point: Prediction | None) -> Found:
        refusal = next(iter(self.trials.unfit.values()), "")
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
            simulated=len(self.trials.tried),
            unfit=len({replace(own, strategy=STRATEGIES[0]) for own in self.trials.unfit}),
            refusal="" if not self.trials.unfit else refusal,
            schedules=self.trials.scorer.used + self.trials.final.used,
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

    def _plain(self, row: int) -> Layout:
        return self.space.layout(row, (1,) * len(self.job.model.modules), STRATEGIES[0])

    def _mean_point(self, placement: str) -> Prediction | None:
        """The layout of the paper's objective: the first of its order that holds the heaviest batch."""
        for row in self.paper[placement]:
            if own := self.trials.strategies(self._plain(row), every=True):
                return own[0]
        return None
