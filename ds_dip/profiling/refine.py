"""Measures lines point by point, and more points where linear interpolation between them errs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from ds_dip.costs.grid import bracket, columns_of, mix
from ds_dip.costs.table import Row
from ds_dip.profiling.sweep import Line

#: Relative error of linear interpolation beyond which an interval is divided.
TOLERANCE = 0.05
#: Divisions of one interval at most, and the ratio of its ends below which it is left.
_DEPTH, _NARROW = 4, 1.1
Measure = Callable[[Line, int], Row]


def interpolation_error(left: Row, right: Row, row: Row, axis: str) -> float:
    """How far linear interpolation between two rows is off a third, over the larger of forward and backward."""
    places = left.shape[axis], right.shape[axis]
    _, _, share = bracket(places, row.shape[axis])
    guess, true = mix(columns_of(left), columns_of(right), share), columns_of(row)
    parts = ((guess[0], true[0]), (guess[1] + guess[2], true[1] + true[2]))
    whole = max(value for _, value in parts)
    return max((abs(a - b) / whole for a, b in parts), default=0.0) if whole > 0 else 0.0


def measured(line: Line, measure: Measure) -> Iterator[Row]:
    """All rows of a line: its points, the middle of every interval as a test, and halves where the test fails.

    An error within the rows' own spread says nothing about the shape, and divides nothing.
    """
    rows = {point: measure(line, point) for point in line.points}
    yield from rows.values()
    pending = [(a, b, 0) for a, b in pairwise(line.points)]
    while pending:
        low, high, depth = pending.pop(0)
        middle = round((low * high) ** 0.5)
        if middle in (low, high) or high < low * _NARROW:
            continue
        rows[middle] = measure(line, middle)
        yield rows[middle]
        error = interpolation_error(rows[low], rows[high], rows[middle], line.axis)
        if error > max(TOLERANCE, _noise(rows[middle])) and depth < _DEPTH:
            pending += [(low, middle, depth + 1), (middle, high, depth + 1)]


def _noise(row: Row) -> float:
    """Relative error of a row's own medians, twice their standard error."""
    whole = row.forward.median + row.backward_input.median + row.backward_weight.median
    spread = row.forward.spread + row.backward_input.spread + row.backward_weight.spread
    return 2 * 0.93 * spread / whole / max(1, row.repeats) ** 0.5 if whole > 0 else 0.0
