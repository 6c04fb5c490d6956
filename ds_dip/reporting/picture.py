"""Pictures of timelines: stages of ranks over time, as pixels for TensorBoard or as SVG for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ds_dip.reporting.timeline import StepTimeline

#: A module's colours of forwards and backwards, told apart by those who see colours otherwise too (Okabe and Ito).
COLOURS = (
    ("#56b4e9", "#0072b2"),
    ("#ffb570", "#d55e00"),
    ("#58c9a6", "#00785a"),
    ("#e3a9c9", "#a5447f"),
    ("#f0e442", "#8a7a00"),
)
_INK, _PAPER, _IDLE = "#222222", "#ffffff", "#ececec"
_LEFT, _RIGHT, _ROW, _GAP, _HEAD, _FOOT = 56, 12, 22, 4, 22, 40
_WIDTH = 960
#: Sizes of letters in the picture, for what fits into a box.
_LETTER, _LINE = 6.2, 11


@dataclass(frozen=True, slots=True)
class Box:
    """A stage on its rank, in any unit of time; ``text`` is written into it where it fits."""

    rank: int
    start: float
    end: float
    kind: str
    module: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Boxes of some ranks under one title."""

    title: str
    ranks: int
    boxes: Sequence[Box]

    @property
    def end(self) -> float:
        """When the last box ends."""
        return max((box.end for box in self.boxes), default=0.0)

    @property
    def idle(self) -> float:
        """Share of the ranks' time until then that no box fills."""
        busy = sum(box.end - box.start for box in self.boxes)
        return 1.0 - busy / (self.ranks * self.end) if self.end > 0 else 0.0


def panels(timeline: StepTimeline) -> list[Panel]:
    """A step as it was planned and, where it ran, as it was measured."""
    made = []
    for name, track in (("planned", timeline.planned), ("measured", timeline.measured)):
        if track is not None:
            boxes = [
                Box(own.rank, own.start_s, own.end_s, own.kind, own.module, str(own.microbatch)) for own in track.stages
            ]
            panel = Panel("", timeline.ranks, boxes)
            title = f"step {timeline.step}, {name}: {1e3 * panel.end:.1f} ms, {panel.idle:.1%} idle"
            made.append(Panel(title, timeline.ranks, boxes))
    return made


def pixels(drawn: Sequence[Panel]) -> NDArray[np.uint8]:
    """The panels as an image [height, width, 3]; all are drawn to one scale."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (_WIDTH, _height(drawn)), _PAPER)
    pen = ImageDraw.Draw(picture)
    for x, y, width, height, colour in _rectangles(drawn):
        if width >= 0.5:
            pen.rectangle((x, y, max(x, x + width - 1), y + height - 1), colour)
    for x, y, text, colour, anchor in _texts(drawn):
        left = x - _LETTER * len(text) * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
        pen.text((left, y - _LINE), text, colour)
    return np.asarray(picture, dtype=np.uint8)


def svg(drawn: Sequence[Panel]) -> str:
    """The panels as an SVG file of their own; all are drawn to one scale."""
    height = _height(drawn)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
    parts = [f'{head}font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="{_PAPER}"/>']
    for x, y, width, tall, colour in _rectangles(drawn):
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{tall}" fill="{colour}"/>')
    for x, y, text, colour, anchor in _texts(drawn):
        parts.append(f'<text x="{x:.1f}" y="{y}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _height(drawn: Sequence[Panel]) -> int:
    return sum(_HEAD + panel.ranks * (_ROW + _GAP) for panel in drawn) + _FOOT


def _scale(drawn: Sequence[Panel]) -> float:
    end = max((panel.end for panel in drawn), default=0.0)
    return (_WIDTH - _LEFT - _RIGHT) / end if end > 0 else 0.0


def _modules(drawn: Sequence[Panel]) -> list[str]:
    return list(dict.fromkeys(box.module for panel in drawn for box in panel.boxes))


def _colour(modules: Sequence[str], module: str, kind: str) -> str:
    return COLOURS[modules.index(module) % len(COLOURS)][kind != "F"]


def _rows(drawn: Sequence[Panel]) -> list[int]:
    """Where each panel's first rank begins."""
    tops: list[int] = []
    y = 0
    for panel in drawn:
        tops.append(y + _HEAD)
        y += _HEAD + panel.ranks * (_ROW + _GAP)
    return tops


def _rectangles(drawn: Sequence[Panel]) -> list[tuple[float, float, float, int, str]]:
    scale, modules, found = _scale(drawn), _modules(drawn), []
    for panel, top in zip(drawn, _rows(drawn), strict=True):
        for rank in range(panel.ranks):
            found.append((float(_LEFT), float(top + rank * (_ROW + _GAP)), panel.end * scale, _ROW, _IDLE))
        for box in panel.boxes:
            y = top + box.rank * (_ROW + _GAP)
            # The gap of half a pixel keeps boxes of one colour apart.
            width = max(0.5, (box.end - box.start) * scale - 0.5)
            found.append((_LEFT + box.start * scale, float(y), width, _ROW, _colour(modules, box.module, box.kind)))
    bottom = float(_height(drawn) - _FOOT + 14)
    for number, (_, colour) in enumerate(_legend(modules)):
        found.append((float(_LEFT + 150 * (number % 6)), bottom + 14 * (number // 6), 10.0, 10, colour))
    return found


def _texts(drawn: Sequence[Panel]) -> list[tuple[float, float, str, str, str]]:
    scale, modules, found = _scale(drawn), _modules(drawn), []
    for panel, top in zip(drawn, _rows(drawn), strict=True):
        found.append((float(_LEFT), top - 7.0, panel.title, _INK, "start"))
        for rank in range(panel.ranks):
            found.append((_LEFT - 6.0, top + rank * (_ROW + _GAP) + 15.0, f"rank {rank}", _INK, "end"))
        for box in panel.boxes:
            width = (box.end - box.start) * scale
            if box.text and width > _LETTER * len(box.text) + 3:
                colour = _INK if box.kind == "F" else _PAPER
                y = top + box.rank * (_ROW + _GAP) + 15.0
                found.append((_LEFT + box.start * scale + width / 2, y, box.text, colour, "middle"))
    y = float(_height(drawn) - _FOOT + 23)
    for number, (text, _) in enumerate(_legend(modules)):
        found.append((_LEFT + 15.0 + 150 * (number % 6), y + 14 * (number // 6), text, _INK, "start"))
    return found


def _legend(modules: Sequence[str]) -> list[tuple[str, str]]:
    return [
        (f"{module}, {name}", _colour(modules, module, kind))
        for module in modules
        for name, kind in (("forward", "F"), ("backward", "B"))
    ]
