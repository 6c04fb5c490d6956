"""Drawings of the report, as SVG that suits a light page and a dark one: lines, and bars beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

#: Colours of series in light and dark, told apart by those who see colours otherwise too (Okabe and Ito).
LIGHT = ("#0072b2", "#d55e00", "#007d5c", "#b0578d", "#8a6d00", "#56707c", "#333333", "#3f51b5")
DARK = ("#56b4e9", "#ff9d57", "#3ecf9f", "#e79bc6", "#f0e442", "#a9bcc6", "#eeeeee", "#9fa8ff")
_WIDTH, _LEFT, _RIGHT, _TOP = 720, 64, 16, 34
_BAR, _BAR_LEFT, _BAR_RIGHT = 15, 250, 74
_LETTER = 6.2
Series = Sequence[Mapping[str, Any]]


def style() -> str:
    """What every drawing is styled by, once a page or once in a file of its own."""
    light = "".join(f".s{n}{{--c:{colour}}}" for n, colour in enumerate(LIGHT))
    dark = "".join(f".s{n}{{--c:{colour}}}" for n, colour in enumerate(DARK))
    return (
        "svg.chart{--ink:#333;--grid:#ddd;--band:#e8f2ea;font:11px system-ui,sans-serif;max-width:100%;height:auto}"
        f"svg.chart text{{fill:var(--ink)}}{light}"
        "svg.chart polyline{fill:none;stroke:var(--c);stroke-width:1.7;stroke-linejoin:round}"
        "svg.chart .mark{fill:var(--c)}svg.chart .grid{stroke:var(--grid)}svg.chart .band{fill:var(--band)}"
        f"@media(prefers-color-scheme:dark){{svg.chart{{--ink:#ddd;--grid:#444;--band:#20322a}}{dark}}}"
    )


def alone(svg: str) -> str:
    """A drawing as a file of its own."""
    head, _, rest = svg.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{style()}</style>{rest}\n'


def lines(series: Series, title: str, x: str, y: str, *, logarithmic: bool = False) -> str:
    """Lines over a linear or logarithmic axis; the other axis begins at 0 where that wastes no more than half."""
    points = [point for own in series for point in own["points"]]
    if not points:
        return ""
    legend, rows = _legend([own["name"] for own in series])
    height = 250 + 16 * rows
    bottom = height - 46 - 16 * rows
    across = _Scale(min(own[0] for own in points), max(own[0] for own in points), _LEFT, _WIDTH - _RIGHT, logarithmic)
    low, high = min(own[1] for own in points), max(own[1] for own in points)
    low = 0.0 if low > 0 and low < high / 2 else low - 0.08 * (high - low or abs(high) or 1.0)
    up = _Scale(low, high + 0.05 * (high - low), bottom, _TOP)
    parts = [_open(height, title), f'<text x="8" y="16" font-weight="bold">{escape(title)}</text>']
    for value in up.ticks():
        parts.append(_grid(_LEFT, up(value), _WIDTH - _RIGHT, up(value)))
        parts.append(f'<text x="{_LEFT - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in across.ticks():
        parts.append(_grid(across(value), _TOP, across(value), bottom))
        parts.append(f'<text x="{across(value):.1f}" y="{bottom + 15}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{bottom + 31}" text-anchor="middle">{escape(x)}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="16" text-anchor="end">{escape(y)}</text>')
    for number, own in enumerate(series):
        drawn = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in own["points"])
        parts.append(f'<polyline class="s{number % len(LIGHT)}" points="{drawn}"/>')
        if len(own["points"]) <= 12:
            dots = "".join(f'<circle cx="{across(a):.1f}" cy="{up(b):.1f}" r="3"/>' for a, b in own["points"])
            parts.append(f'<g class="mark s{number % len(LIGHT)}">{dots}</g>')
    parts.append(f'<g transform="translate(0 {bottom + 40})">{legend}</g>')
    return "".join(parts) + "</svg>"


def bars(groups: Sequence[tuple[str, Sequence[tuple[str, float]]]], title: str, unit: str = "%") -> str:
    """Bars beside each other in groups, one colour a name; numbers at their ends."""
    names = list(dict.fromkeys(name for _, own in groups for name, _ in own))
    values = [value for _, own in groups for _, value in own]
    if not values:
        return ""
    legend, rows = _legend(names)
    across = _Scale(min(0.0, *values), max(0.0, *values) or 1.0, _BAR_LEFT, _WIDTH - _BAR_RIGHT)
    y, parts = _TOP + 16 * rows, []
    for label, own in groups:
        middle = y + _BAR * len(own) / 2 + 4
        for line, text in enumerate(_wrapped(label)):
            place = middle + 13 * line - 6.5 * (len(_wrapped(label)) - 1)
            parts.append(f'<text x="8" y="{place:.1f}">{escape(text)}</text>')
        for name, value in own:
            start, end = sorted((across(0.0), across(value)))
            kind = f"mark s{names.index(name) % len(LIGHT)}"
            box = f'x="{start:.1f}" y="{y}" width="{max(1.0, end - start):.1f}" height="{_BAR - 3}"'
            parts.append(f'<rect class="{kind}" {box}><title>{escape(name)}</title></rect>')
            parts.append(f'<text x="{max(end, across(0.0)) + 5:.1f}" y="{y + 10}">{_number(value)} {unit}</text>')
            y += _BAR
        y += 12
    axis = _grid(across(0.0), _TOP + 16 * rows - 4, across(0.0), y - 8)
    head = f'<text x="8" y="16" font-weight="bold">{escape(title)}</text><g transform="translate(0 22)">{legend}</g>'
    return _open(y, title) + head + axis + "".join(parts) + "</svg>"


def deviations(entries: Sequence[tuple[str, float]], tolerance: float) -> str:
    """How far each figure is above or below the paper's; a half is as far to the left as a double to the right.

    The band is what counts as agreement.
    """
    if not entries:
        return ""
    most = max(math.log(2.0), *(abs(math.log(max(1e-3, 1 + own))) for _, own in entries))
    left, right = 345, _WIDTH - 70

    def across(own: float) -> float:
        return left + (math.log(max(1e-3, 1 + own)) / most + 1) / 2 * (right - left)

    y, height = 40, 46 + 18 * len(entries)
    title = "ours to the paper's, every figure"
    low, high = across(-tolerance), across(tolerance)
    parts = [
        _open(height, title),
        f'<text x="8" y="16" font-weight="bold">{title}</text>',
        f'<rect class="band" x="{low:.1f}" y="28" width="{high - low:.1f}" height="{height - 32}"/>',
        f'<text x="{across(0):.1f}" y="24" text-anchor="middle">within {tolerance:.0%}</text>',
        _grid(across(0), 28, across(0), height - 4),
    ]
    for name, own in entries:
        kind = f"s{2 if abs(own) <= tolerance else 1}"
        shown = name if len(name) <= 48 else f"{name[:47]}…"
        anchor, place = ("start", across(own) + 8) if own >= 0 else ("end", across(own) - 8)
        parts.append(f'<text x="8" y="{y + 4}"><title>{escape(name)}</title>{escape(shown)}</text>')
        parts.append(f'<polyline class="{kind}" points="{across(0):.1f},{y} {across(own):.1f},{y}"/>')
        parts.append(f'<circle class="mark {kind}" cx="{across(own):.1f}" cy="{y}" r="4"/>')
        parts.append(f'<text x="{place:.1f}" y="{y + 4}" text-anchor="{anchor}">{100 * own:+.0f} %</text>')
        y += 18
    return "".join(parts) + "</svg>"


class _Scale:
    """From values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float, logarithmic: bool = False) -> None:
        self._log = logarithmic
        self._low, self._high = low, high if high > low else low + (abs(low) or 1.0)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        low, high = self._low, self._high
        if self._log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self._start + (value - low) / (high - low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """About five round values between the ends; of a logarithmic axis 1, 2 and 5 times powers of ten."""
        if self._log:
            powers = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
            steps = (1,) if len(powers) > 4 else (1, 2, 5)
            every = [step * 10.0**power for power in powers for step in steps]
            return [value for value in every if self._low <= value <= self._high]
        raw = (self._high - self._low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(own * power for own in (1, 2, 5, 10) if own * power >= raw)
        first = math.ceil(self._low / step - 1e-9)
        # Rounded, so that a label is not 0.30000000000000004.
        return [round(number * step, 12) for number in range(first, math.floor(self._high / step + 1e-9) + 1)]


def _open(height: float, title: str) -> str:
    box = f'viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}"'
    return f'<svg class="chart" role="img" aria-label="{escape(title)}" {box}>'


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _legend(names: Sequence[str]) -> tuple[str, int]:
    """A drawing of names with their colours, and its number of rows; none for a single name."""
    if len(names) < 2:
        return "", 0
    parts, x, row = [], 8.0, 0
    for number, name in enumerate(names):
        wide = 26 + _LETTER * len(name)
        if x > 8 and x + wide > _WIDTH:
            x, row = 8.0, row + 1
        box = f'x="{x:.0f}" y="{16 * row}" width="12" height="9"'
        parts.append(f'<rect class="mark s{number % len(LIGHT)}" {box}/>')
        parts.append(f'<text x="{x + 17:.0f}" y="{16 * row + 9}">{escape(name)}</text>')
        x += wide
    return "".join(parts), row + 1


def _wrapped(text: str, most: int = 38) -> list[str]:
    """A label in lines."""
    found = [""]
    for word in text.split():
        if found[-1] and len(found[-1]) + 1 + len(word) > most:
            found.append(word)
        else:
            found[-1] = f"{found[-1]} {word}".strip()
    return found


def _number(value: float) -> str:
    return f"{value:+.1f}" if abs(value) < 100 else f"{value:+.0f}"
