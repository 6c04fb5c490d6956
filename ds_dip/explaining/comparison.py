"""A comparison of schedules as a document, ``ds-dip/comparison`` 1, and as a drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from ds_dip.explaining.trial import Trial
from ds_dip.reproduction.charts import alone

FORMAT, VERSION = "ds-dip/comparison", 1
_WIDTH, _LEFT, _MIDDLE, _ROW, _TOP = 860, 130, 600, 26, 58
_GAP = 70


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": median(values), "least": min(values), "most": max(values)}


def comparison_document(trials: Sequence[Trial], about: Mapping[str, Any]) -> dict[str, Any]:
    """All schedules, the fastest first, those that cannot run last; ``about`` is what they were compared on."""
    ran = sorted((own for own in trials if not own.reason), key=lambda own: own.makespan)
    rows: list[dict[str, Any]] = []
    for own in [*ran, *(own for own in trials if own.reason)]:
        row: dict[str, Any] = {"schedule": own.name, "detail": own.detail}
        if own.reason:
            row["reason"] = own.reason
        else:
            row |= {
                "makespan_s": spread(own.makespans) | {"batches": list(own.makespans)},
                "lower_bound_s": spread(own.bounds),
                "gap": own.gap,
                "bubble": spread(own.bubbles),
                "activation_bytes": own.memory,
                "state_bytes": own.state,
                "slower": own.makespan / ran[0].makespan - 1 if ran[0].makespan else 0.0,
            }
        rows.append(row)
    return {"format": FORMAT, "version": VERSION, **about, "schedules": rows}


def drawing(document: Mapping[str, Any]) -> str:
    """An SVG file: each schedule's makespan and bubble over the batches (median, least to most), and its bound."""
    rows = [row for row in document["schedules"] if "makespan_s" in row]
    refused = [row for row in document["schedules"] if "makespan_s" not in row]
    most = max((row["makespan_s"]["most"] for row in rows), default=0.0) or 1.0
    height = _TOP + _ROW * (len(rows) + len(refused)) + 44
    title = f"{document.get('model', '')}: schedules over {document.get('batches', 0)} batches"
    parts = [
        f'<svg class="chart" role="img" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}">',
        f'<text x="8" y="16" font-weight="bold">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="36">makespan, s: median, least to most; the tick is its lower bound</text>',
        f'<text x="{_MIDDLE + _GAP}" y="36">bubble</text>',
    ]

    def seconds(value: float) -> float:
        return _LEFT + value / most * (_MIDDLE - _LEFT)

    def share(value: float) -> float:
        return _MIDDLE + _GAP + max(0.0, value) * (_WIDTH - 50 - _MIDDLE - _GAP)

    for number, row in enumerate(rows):
        y = _TOP + _ROW * number
        kind = f"s{2 if row['schedule'].startswith('dip') else 0}"
        parts.append(f'<text x="8" y="{y + 4}">{escape(row["schedule"])}</text>')
        for scale, own, text in (
            (seconds, row["makespan_s"], f"{row['makespan_s']['median']:.3g}"),
            (share, row["bubble"], f"{row['bubble']['median']:.0%}"),
        ):
            low, middle, high = (scale(own[name]) for name in ("least", "median", "most"))
            parts.append(f'<polyline class="{kind}" points="{low:.1f},{y} {high:.1f},{y}"/>')
            parts.append(f'<circle class="mark {kind}" cx="{middle:.1f}" cy="{y}" r="4.5"/>')
            parts.append(f'<text x="{high + 8:.1f}" y="{y + 4}">{text}</text>')
        bound = seconds(row["lower_bound_s"]["median"])
        parts.append(f'<polyline class="s5" points="{bound:.1f},{y - 7} {bound:.1f},{y + 7}"/>')
    for number, row in enumerate(refused, len(rows)):
        y = _TOP + _ROW * number
        parts.append(f'<text x="8" y="{y + 4}">{escape(row["schedule"])}</text>')
        parts.append(f'<text x="{_LEFT}" y="{y + 4}">cannot run: {escape(row["reason"][:110])}</text>')
    foot = height - 26
    for value in (0.0, most / 2, most):
        parts.append(f'<text x="{seconds(value):.1f}" y="{foot}" text-anchor="middle">{value:.3g}</text>')
    for value in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{share(value):.1f}" y="{foot}" text-anchor="middle">{value:.0%}</text>')
    return alone("".join(parts) + "</svg>")
