"""The search among layouts of one placement: the most promising by closed form and bound, then from there onwards.

It goes from neighbour to neighbour, and ends where those of all the best are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

import numpy as np
import numpy.typing as npt

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.parallelism.closed import Floats
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.layout import DISAGGREGATED, Layout
from ds_dip.parallelism.simulation import Prediction
from ds_dip.parallelism.space import Columns, Options, laps
from ds_dip.parallelism.trials import Effort, Trials, ranked

Ints = npt.NDArray[np.int64]
#: For each layout that is simulated first so many are bounded.
_SEARCHED = 10
#: At least so many of the best are gone on from, and other meshes that are neighbours of each.
_WIDE, _NEAR = 4, 6
#: So many of the nearest rows neighbours are chosen from.
_LOOKED = 128
#: Neighbours that are simulated at most, for each layout that is simulated first.
_STEPS = 4


class Local:
    """The search among ``rows`` of a space, all of one placement and held by memory as far as the mean point tells.

    ``seconds`` are what is expected of each row, ``paper`` the first rows of the paper's objective.
    """

    def __init__(
        self,
        job: Job,
        options: Options,
        effort: Effort,
        trials: Trials,
        space: Columns,
        rows: Ints,
        seconds: Floats,
        paper: Sequence[int],
    ) -> None:
        self.job, self.options, self.effort, self.trials = job, options, effort, trials
        self.space, self.rows, self.paper = space, rows, paper
        self._order = rows[np.argsort(seconds, kind="stable")]
        self._kept = 2 * effort.shown
        own = space.take(rows)
        self._places = _places(own, job.batch)
        #: Rows of the same meshes follow each other: each row's number of its meshes.
        meshes = np.concatenate([own.encoder, own.backbone], axis=1)
        self._meshes = np.cumsum(np.any(np.diff(meshes, axis=0, prepend=meshes[:1]), axis=1))

    @property
    def expected(self) -> int:
        """Layouts that are simulated, about."""
        return min(len(self.rows), (2 + _STEPS) * self.effort.pool)

    def whole(self) -> list[Layout]:
        """All layouts where there are few, else none."""
        most = self.effort.exhaustive
        few = [own for row in self._order.tolist() for own in self._laps(row)] if len(self.rows) <= most else []
        return few if len(few) <= most else []

    def run(self) -> list[Prediction]:
        """The best on all batches of the search, fastest first."""
        found = self._climb(self._best(self._pool(), [], batches=1))
        return self._best((own.layout for own in found), [], batches=None)

    def _pool(self) -> list[Layout]:
        """What is simulated first."""
        looked = self._order[: _SEARCHED * self.effort.pool].tolist()
        bounded = sorted((own, row) for row in looked if (own := self.trials.least(self._plain(row))) < inf)
        found = [own for _, row in bounded[: self.effort.pool] for own in self._corners(row)]
        return list(dict.fromkeys([*found, *(self._plain(row) for row in self.paper)]))

    def _climb(self, found: list[Prediction]) -> list[Prediction]:
        """The best of these and of what is reached from them, each step from the best that was not gone on from."""
        gone: set[Layout] = set()
        seen = {replace(own, strategy=STRATEGIES[0]) for own in self.trials.tried}
        left, wide = _STEPS * self.effort.pool, max(_WIDE, self.effort.shown)
        while left > 0:
            start = next((own.layout for own in found[:wide] if own.layout not in gone), None)
            if start is None:
                break
            gone.add(start)
            near = [own for own in self.near(start) if own not in seen]
            seen.update(near)
            left -= len(near)
            found = self._best(near, found, batches=1)
        return found

    def near(self, layout: Layout) -> list[Layout]:
        """Neighbours: K one larger or smaller, the next fewer and more microbatches, and the nearest other meshes."""
        plain = replace(layout, strategy=STRATEGIES[0])
        found = [replace(plain, laps=own) for own in laps(self.job, plain, self.options) if _is_next(own, layout.laps)]
        far = np.abs(self._places - _place(layout, self.job.batch)).sum(axis=1)
        close = np.argpartition(far, min(_LOOKED, len(far) - 1))[: _LOOKED + 1]
        close = close[np.lexsort((close, far[close]))]
        same, counts = self._meshes[close[0]], self.space.microbatches[self.rows]
        meshes, sides = {int(same)}, set[bool]()
        for index in close[1:].tolist():
            if self._meshes[index] == same and (side := bool(counts[index] > layout.microbatches)) not in sides:
                sides.add(side)
            elif len(meshes) <= _NEAR and int(self._meshes[index]) not in meshes:
                meshes.add(int(self._meshes[index]))
            else:
                continue
            near = self._plain(int(self.rows[index]))
            found.append(replace(near, laps=self._clipped(near, layout.laps)))
        return found

    def _clipped(self, layout: Layout, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """The K of a layout that is closest to the one that is ``wanted``."""
        return min(
            laps(self.job, layout, self.options),
            key=lambda own: sum(abs(a - b) for a, b in zip(own, wanted, strict=True)),
        )

    def _corners(self, row: int) -> Iterable[Layout]:
        """A row with the least K of every module, with the largest, and with the largest of the last module alone."""
        every = list(self._laps(row))
        own = [every[0].laps, every[-1].laps, (*every[0].laps[:-1], every[-1].laps[-1])]
        return (replace(every[0], laps=one) for one in dict.fromkeys(own))

    def _plain(self, row: int) -> Layout:
        return self.space.layout(row, (1,) * len(self.job.model.modules), STRATEGIES[0])

    def _laps(self, row: int) -> Iterable[Layout]:
        plain = self._plain(row)
        return (replace(plain, laps=own) for own in laps(self.job, plain, self.options))

    def _best(self, layouts: Iterable[Layout], known: list[Prediction], batches: int | None) -> list[Prediction]:
        """The best of these, each by its best memory strategy, and of those that are ``known``; as many as are kept."""
        found = list(known)
        for layout in layouts:
            limit = inf if len(found) < self._kept else found[-1].mean
            found = ranked([*found, *self.trials.strategies(layout, batches=batches, limit=limit)])[: self._kept]
        return found


def _is_next(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return one != other and all(abs(a - b) <= 1 for a, b in zip(one, other, strict=True))


def _place(layout: Layout, batch: int) -> Floats:
    """Where a layout lies: logarithms of its meshes' sizes and of the samples of a microbatch."""
    meshes = [layout.backbone, *([layout.encoder] if layout.placement == DISAGGREGATED else [])]
    sizes = [size for mesh in meshes for size in (mesh.tensor, mesh.pipeline, mesh.data)]
    return np.log2([*sizes, batch / (layout.microbatches * layout.backbone.data)])


def _places(space: Columns, batch: int) -> Floats:
    """The same of all rows, of one placement."""
    meshes = [space.backbone, *([space.encoder] if space.disaggregated.any() else [])]
    samples = batch / (space.microbatches * space.backbone[:, 2])
    found: Floats = np.log2(np.concatenate([*meshes, samples[:, None]], axis=1))
    return found
