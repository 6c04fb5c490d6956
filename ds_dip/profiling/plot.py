"""Latency against shape as an SVG: measured rows, the lines between them, and how far interpolation is off each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import log2

from ds_dip.costs.operators import OPERATORS
from ds_dip.costs.table import LatencyTable, Row
from ds_dip.profiling.refine import TOLERANCE, interpolation_error

_WIDTH, _HEIGHT, _COLUMNS = 380, 230, 3
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 40, 40
_HEAD, _STEPS = 58, 8
_FONT = 'font-family="sans-serif" font-size="10"'
_SERIES = (("forward", "#1565c0"), ("backward", "#c62828"))


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows of one operator along one axis, ascending."""

    title: str
    axis: str
    rows: tuple[Row, ...]

    def errors(self) -> tuple[float | None, ...]:
        """For every row but the ends, how far interpolation between its neighbours is off it."""
        inner = [
            interpolation_error(left, right, row, self.axis)
            for left, row, right in zip(self.rows, self.rows[1:], self.rows[2:], strict=False)
        ]
        return (None, *inner, None)


def panels(table: LatencyTable, names: Sequence[str] = ()) -> list[Panel]:
    """A panel for every operator and axis with at least three rows; ``names`` keeps only these operators."""
    lines: dict[tuple[str, str, tuple[tuple[str, int], ...]], list[Row]] = {}
    for row in table.rows:
        if row.name not in OPERATORS or (names and row.name not in names):
            continue
        for axis in OPERATORS[row.name].axes:
            others = tuple(sorted((key, value) for key, value in row.shape.items() if key != axis))
            lines.setdefault((row.name, axis, others), []).append(row)
    found = []
    for (name, axis, others), rows in lines.items():
        if len(rows) >= 3:
            title = name + "".join(f" {key} {value}" for key, value in others)
            ascending = sorted((row.shape[axis], number) for number, row in enumerate(rows))
            found.append(Panel(title, axis, tuple(rows[number] for _, number in ascending)))
    return found


def seconds(row: Row) -> Mapping[str, float]:
    """What is drawn of a row."""
    return {"forward": row.forward.median, "backward": row.backward_input.median + row.backward_weight.median}


def svg(table: LatencyTable, drawn: Sequence[Panel]) -> str:
    """The drawing: log scales, a dot a row with its interquartile range, errors in per cent above the dots."""
    count = -(-len(drawn) // _COLUMNS)
    width, height = _WIDTH * min(_COLUMNS, len(drawn)), _HEIGHT * count + _HEAD
    head = f"{table.device}, {table.dtype}, {table.ranks} ranks of {table.threads} threads, {table.date}"
    legend = (
        "forward blue, backward red; dots are medians with their interquartile range, lines the linear interpolation",
        f"numbers: by how many per cent a row is off the line between its neighbours, bold above {100 * TOLERANCE:g}",
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {_FONT}>',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="18" font-size="13">{escape(head)}</text>',
        *(f'<text x="10" y="{34 + 14 * line}">{escape(text)}</text>' for line, text in enumerate(legend)),
    ]
    for number, panel in enumerate(drawn):
        x, y = number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT + _HEAD - 2
        parts.append(f'<g transform="translate({x} {y})">{_panel(panel)}</g>')
    return "".join(parts) + "</svg>\n"


def _panel(panel: Panel) -> str:
    xs = [row.shape[panel.axis] for row in panel.rows]
    values = [value for row in panel.rows for value in seconds(row).values() if value > 0]
    across = _Scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
    up = _Scale(min(values) / 1.3, max(values) * 1.5, _HEIGHT - _BOTTOM, _TOP)
    inner = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [
        f'<text x="{_LEFT}" y="{_TOP - 22}">{escape(panel.title[:66])}</text>',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{inner[0]}" height="{inner[1]}" fill="none" stroke="#999"/>',
        f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">{panel.axis}</text>',
    ]
    for tick in up.ticks():
        y = up(tick)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{y + 3:.1f}" text-anchor="end">{_time(tick)}</text>')
    for tick in dict.fromkeys((xs[0], xs[len(xs) // 2], xs[-1])):
        parts.append(f'<text x="{across(tick):.1f}" y="{_HEIGHT - _BOTTOM + 13}" text-anchor="middle">{tick}</text>')
    for name, colour in _SERIES:
        parts.append(_series(panel, name, colour, across, up))
    for row, error in zip(panel.rows, panel.errors(), strict=True):
        if error is not None:
            weight = "bold" if error > TOLERANCE else "normal"
            top = min(up(value) for value in seconds(row).values() if value > 0)
            place = f'x="{across(row.shape[panel.axis]):.1f}" y="{top - 6:.1f}"'
            parts.append(
                f'<text {place} text-anchor="middle" font-size="8" font-weight="{weight}">{100 * error:.0f}</text>'
            )
    return "".join(parts)


def _series(panel: Panel, name: str, colour: str, across: _Scale, up: _Scale) -> str:
    drawn = [(row, seconds(row)[name]) for row in panel.rows if seconds(row)[name] > 0]
    places = [(row.shape[panel.axis], value) for row, value in drawn]
    # On log scales a line is a curve.
    curve = [
        (low + (high - low) * step / _STEPS, a + (b - a) * step / _STEPS)
        for (low, a), (high, b) in pairwise(places)
        for step in range(_STEPS)
    ]
    points = " ".join(f"{across(x):.1f},{up(value):.1f}" for x, value in [*curve, *places[-1:]])
    parts = [f'<polyline points="{points}" fill="none" stroke="{colour}"/>']
    for row, value in drawn:
        spread = row.forward.spread if name == "forward" else row.backward_input.spread + row.backward_weight.spread
        x, low, high = across(row.shape[panel.axis]), up(max(value / 2, value - spread / 2)), up(value + spread / 2)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{up(value):.1f}" r="2" fill="{colour}"/>')
    return "".join(parts)


class _Scale:
    """A logarithmic scale from values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high, self._start, self._end = low, max(high, low * 1.001), start, end

    def __call__(self, value: float) -> float:
        share = log2(value / self._low) / log2(self._high / self._low)
        return self._start + min(1.0, max(0.0, share)) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Values of 1, 2 and 5 times powers of ten between the ends."""
        everything = [m * 10.0**e for e in range(-9, 3) for m in (1, 2, 5)]
        return [value for value in everything if self._low <= value <= self._high]


def _time(value: float) -> str:
    return f"{1e6 * value:g} µs" if value < 1e-3 else f"{1e3 * value:g} ms" if value < 1 else f"{value:g} s"
