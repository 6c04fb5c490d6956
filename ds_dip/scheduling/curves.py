"""Search curves as a plot: best makespan against time and against evaluations, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, MARGIN = 460, 300, 50
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
Point = tuple[float, int, float]


def plot(curves: Mapping[str, Sequence[Point]]) -> str:
    """An SVG document of (seconds, evaluations, makespan) by method, both axes of effort logarithmic."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="white"/>'
    )
    parts = [head]
    for panel, (column, name) in enumerate(((0, "seconds"), (1, "evaluations"))):
        parts += _panel(curves, column, name, panel * WIDTH)
    return "\n".join([*parts, "</svg>", ""])


def _panel(curves: Mapping[str, Sequence[Point]], column: int, name: str, left: float) -> list[str]:
    points = [point for curve in curves.values() for point in curve]
    efforts = [max(float(point[column]), 1e-4) for point in points]
    low, high = math.log10(min(efforts)), math.log10(max(efforts))
    best, worst = min(point[2] for point in points), max(point[2] for point in points)

    def across(effort: float) -> float:
        share = (math.log10(max(effort, 1e-4)) - low) / max(high - low, 1e-9)
        return left + MARGIN + share * (WIDTH - 1.5 * MARGIN)

    def down(makespan: float) -> float:
        return HEIGHT - MARGIN - (makespan - best) / max(worst - best, 1e-9) * (HEIGHT - 2 * MARGIN)

    parts = [f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{name}</text>']
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        x = across(10.0**exponent)
        parts.append(f'<line x1="{x:.1f}" y1="{MARGIN}" x2="{x:.1f}" y2="{HEIGHT - MARGIN}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 32}" text-anchor="middle">1e{exponent}</text>')
    for value in (best, (best + worst) / 2, worst):
        parts.append(f'<text x="{left + MARGIN - 5}" y="{down(value):.1f}" text-anchor="end">{value:.4g}</text>')
    for number, (method, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        steps: list[str] = []
        for place, point in enumerate(curve):
            if place:
                steps.append(f"{across(point[column]):.1f},{down(curve[place - 1][2]):.1f}")
            steps.append(f"{across(point[column]):.1f},{down(point[2]):.1f}")
        parts.append(f'<polyline points="{" ".join(steps)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{left + MARGIN + 90 * number}" y="30" fill="{colour}">{method}</text>')
    return parts
