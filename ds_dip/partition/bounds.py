"""Where a module is cut: runs of consecutive layers, even in number, in their slowest, or in each rank's load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ds_dip.models.partition import PartitionError

#: Below this share of a load a shift of a layer counts as none: it may be rounding.
_LEAST = 1e-12


def even_bounds(layers: int, chunks: int) -> tuple[int, ...]:
    """Bounds of ``chunks`` runs whose numbers of layers differ by at most 1 (DIP, offline step 3: L/(P*K)).

    Raises PartitionError for more chunks than layers.
    """
    _check(layers, chunks)
    return tuple(chunk * layers // chunks for chunk in range(chunks + 1))


def bottlenecks(seconds: Sequence[float], most: int) -> tuple[float, ...]:
    """The least largest sum of 1, 2, ... ``most`` non-empty runs of consecutive layers.

    Raises PartitionError for more chunks than layers.
    """
    layers = len(seconds)
    _check(layers, most)
    own, worst = _runs(seconds), np.full(layers + 1, np.inf)
    worst[0] = 0.0
    found = []
    for _ in range(most):
        worst = np.maximum(worst[:, None], own).min(axis=0)
        found.append(float(worst[layers]))
    return tuple(found)


def bottleneck_bounds(seconds: Sequence[float], chunks: int) -> tuple[int, ...]:
    """Bounds of ``chunks`` non-empty runs of consecutive layers with the least largest sum.

    Among those, the one with the least sum of squares: what is not on the bottleneck is even too.
    Exact, by a dynamic program of O(chunks * layers^2). Raises PartitionError for more chunks than layers.
    """
    layers = len(seconds)
    own = _runs(seconds)
    least = bottlenecks(seconds, chunks)[-1]
    squares = np.where(own <= least * (1 + 1e-9), own * own, np.inf)

    even = np.full(layers + 1, np.inf)
    even[0] = 0.0
    origins = []
    for _ in range(chunks):
        reached = even[:, None] + squares
        origins.append(reached.argmin(axis=0))
        even = reached.min(axis=0)
    bounds = [layers]
    for origin in reversed(origins):
        bounds.append(int(origin[bounds[-1]]))
    return tuple(reversed(bounds))


def levelled_bounds(
    seconds: Mapping[str, Sequence[float]], homes: Mapping[str, Sequence[int]], ranks: int
) -> dict[str, tuple[int, ...]]:
    """Bounds of all modules whose sums over each rank are as level as shifts make them.

    ``homes`` gives the rank of every chunk of every module.

    From the best bottleneck of every module by itself, layers are moved over a bound, one at a time,
    as long as that lowers the sum of the ranks' squared loads: a rank that holds a heavy head gets
    less of the rest. Raises PartitionError for more chunks than layers.
    """
    bounds = {name: list(bottleneck_bounds(own, len(homes[name]))) for name, own in seconds.items()}
    loads = [0.0] * ranks
    for name, cuts in bounds.items():
        for index, (start, stop) in enumerate(pairwise(cuts)):
            loads[homes[name][index]] += sum(seconds[name][start:stop])
    least = _LEAST * sum(loads) ** 2
    while True:
        best: tuple[float, str, int, int] | None = None
        for name, place, step in shifts(bounds):
            layer, giver, taker = _shift(seconds[name], bounds[name], place, step)
            giver, taker = homes[name][giver], homes[name][taker]
            gain = 2 * layer * (loads[giver] - loads[taker] - layer)
            if giver != taker and gain > least and (best is None or gain > best[0]):
                best = gain, name, place, step
        if best is None:
            return {name: tuple(cuts) for name, cuts in bounds.items()}
        _, name, place, step = best
        layer, giver, taker = _shift(seconds[name], bounds[name], place, step)
        loads[homes[name][giver]] -= layer
        loads[homes[name][taker]] += layer
        bounds[name][place] += step


def shifts(bounds: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int, int]]:
    """(module, place, step) of every bound between two chunks that can move by one layer, down or up."""
    for name, cuts in bounds.items():
        for place in range(1, len(cuts) - 1):
            for step in (-1, 1):
                if cuts[place - 1] < cuts[place] + step < cuts[place + 1]:
                    yield name, place, step


def moves(bounds: Mapping[str, Sequence[int]], width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(module, its bounds) with ``width`` neighbouring bounds moved by one layer alike, down or up.

    Chunks between them stay as large: their outer neighbours exchange a layer.
    """
    for name, cuts in bounds.items():
        for place in range(1, len(cuts) - width):
            for step in (-1, 1):
                moved = tuple(own + step * (place <= at < place + width) for at, own in enumerate(cuts))
                if all(a < b for a, b in pairwise(moved)):
                    yield name, moved


def _shift(seconds: Sequence[float], cuts: Sequence[int], place: int, step: int) -> tuple[float, int, int]:
    """(seconds of the layer that changes its chunk, the chunk that loses it, the one that gets it)."""
    if step < 0:
        return seconds[cuts[place] - 1], place - 1, place
    return seconds[cuts[place]], place, place - 1


def _runs(seconds: Sequence[float]) -> npt.NDArray[np.float64]:
    """At (i, j) the sum of the layers i to j (exclusive); infinite for at most 0 layers."""
    before = np.concatenate(([0.0], np.cumsum(np.asarray(seconds, dtype=np.float64))))
    own: npt.NDArray[np.float64] = before[None, :] - before[:, None]
    own[np.tril_indices(len(seconds) + 1)] = np.inf
    return own


def _check(layers: int, chunks: int) -> None:
    if not 1 <= chunks <= layers:
        raise PartitionError(f"{layers} layers cannot be cut into {chunks} chunks: give 1 to {layers}")
