"""Interpolation between a table's rows: linear inside the grid, the roofline's slope outside it, always marked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ds_dip.costs.operators import OPERATORS, Shape
from ds_dip.costs.table import MEASURED, Row

#: Where a cost comes from, from the most to the least trustworthy.
EXACT, INTERPOLATED, OUTSIDE, COMPUTED = 0, 1, 2, 3
MARKS = ("measured", "interpolated", "outside the grid", "roofline")
#: Forward, backward of inputs, backward of weights in seconds, and bytes kept.
Columns = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """Columns of a shape, and the index in ``MARKS`` of where they come from."""

    columns: Columns
    mark: int


def columns_of(row: Row) -> Columns:
    """A row's columns."""
    return row.forward.median, row.backward_input.median, row.backward_weight.median, row.kept_bytes


def mix(low: Columns, high: Columns, share: float) -> Columns:
    """``low`` where ``share`` is 0, ``high`` where it is 1."""
    return tuple([a + (b - a) * share for a, b in zip(low, high, strict=True)])


def bracket(points: Sequence[int], value: float) -> tuple[int, int, float]:
    """Indices of the neighbours of a value among ascending points, and its share of the way; ends are clamped."""
    right = bisect_left(points, value)
    if right == len(points):
        return right - 1, right - 1, 0.0
    if points[right] == value or right == 0:
        return right, right, 0.0
    left = right - 1
    return left, right, (value - points[left]) / (points[right] - points[left])


class Family:
    """Costs of one operator at points of its axes (one or two).

    Between points of the outer axis each is interpolated along the inner one first, so the grid need not be a full
    rectangle. Beyond the largest point the nearest cost grows as ``computed`` (the roofline, by point) does, or stays
    where there is none; below the smallest it stays, since what is left there is what an operator costs whatever its
    size.
    """

    def __init__(
        self,
        values: Mapping[tuple[int, ...], Columns],
        computed: Callable[[Sequence[int]], Columns] | None = None,
        *,
        measured: bool = True,
    ) -> None:
        self._computed, self._measured = computed, measured
        self._flat = all(len(point) == 1 for point in values)
        tree: dict[int, dict[int, Columns]] = {}
        for point, columns in values.items():
            tree.setdefault(point[0], {})[0 if self._flat else point[1]] = columns
        self._tree = tree
        self._outer = tuple(sorted(tree))
        self._inner = {key: tuple(sorted(inner)) for key, inner in tree.items()}

    def at(self, *point: int) -> Cost:
        """The cost at a point of the axes."""
        inner = 0 if self._flat else point[1]
        low, high, share = bracket(self._outer, point[0])
        columns, mark = self._along(self._outer[low], inner)
        if share:
            other, theirs = self._along(self._outer[high], inner)
            columns, mark = mix(columns, other, share), max(mark, theirs, INTERPOLATED)
        elif point[0] > self._outer[-1]:
            columns, mark = self._beyond(columns, (self._outer[-1], inner), (point[0], inner)), OUTSIDE
        elif self._outer[low] != point[0]:
            mark = max(mark, INTERPOLATED)
        return Cost(columns, mark if self._measured else COMPUTED)

    def _along(self, outer: int, inner: int) -> tuple[Columns, int]:
        values = self._tree[outer]
        if self._flat:
            return values[0], EXACT
        points = self._inner[outer]
        low, high, share = bracket(points, inner)
        columns = values[points[low]]
        if share:
            return mix(columns, values[points[high]], share), INTERPOLATED
        if inner > points[-1]:
            return self._beyond(columns, (outer, points[-1]), (outer, inner)), OUTSIDE
        return columns, EXACT if points[low] == inner else INTERPOLATED

    def _beyond(self, nearest: Columns, edge: tuple[int, int], point: tuple[int, int]) -> Columns:
        """The nearest cost, grown as the roofline grows from the edge to the point."""
        if self._computed is None:
            return nearest
        here, there = self._computed(edge), self._computed(point)
        return tuple([n * (t / h if h > 0 else 1.0) for n, h, t in zip(nearest, here, there, strict=True)])


Key = tuple[str, tuple[tuple[str, int], ...]]


def families(
    rows: Iterable[Row], tensor_parallel: int, computed: Callable[[str, Shape], Columns]
) -> Mapping[Key, Family]:
    """Families of the operators among the rows, by name and fixed dimensions, for one tensor-parallel degree.

    Rows of one rank say what a share of that shape costs as well, so they serve where a degree has none of its own.
    """
    grouped: dict[Key, dict[tuple[int, ...], Row]] = {}
    for row in sorted(rows, key=lambda row: row.tensor_parallel == tensor_parallel):
        if row.name in OPERATORS and row.tensor_parallel in (1, tensor_parallel):
            grouped.setdefault(key_of(row.name, row.shape), {})[point_of(row.name, row.shape)] = row
    return {key: _family(key, found, computed) for key, found in grouped.items()}


def _family(key: Key, rows: Mapping[tuple[int, ...], Row], computed: Callable[[str, Shape], Columns]) -> Family:
    name, axes = key[0], OPERATORS[key[0]].axes

    def at(point: Sequence[int]) -> Columns:
        return computed(name, dict(key[1]) | dict(zip(axes, point, strict=False)))

    values = {point: columns_of(row) for point, row in rows.items()}
    return Family(values, at, measured=all(row.source == MEASURED for row in rows.values()))


def key_of(name: str, shape: Shape) -> Key:
    """An operator's name and the dimensions of its shape that are not axes."""
    axes = OPERATORS[name].axes
    return name, tuple(sorted([(key, value) for key, value in shape.items() if key not in axes]))


def point_of(name: str, shape: Shape) -> tuple[int, ...]:
    """Where on its axes a shape lies."""
    return tuple([shape[axis] for axis in OPERATORS[name].axes])
