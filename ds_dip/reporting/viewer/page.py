"""The page around a report: one HTML file with its data, styles and scripts in it, that asks for nothing else."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path

from ds_dip.files import write_atomic
from ds_dip.reporting.viewer.document import Report, document

#: In the order in which they run; they share one scope.
SCRIPTS = (
    "data", "state", "format", "colours", "layout", "stages", "links", "memory", "axis", "canvas", "minimap", "card",
    "search", "legend", "steps", "tables", "pointer", "keys", "main",
)  # fmt: skip
STYLES = ("page", "timeline")


def page(report: Report) -> str:
    """The whole page."""
    styles = "\n".join(_asset(f"{name}.css") for name in STYLES)
    scripts = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    # In JSON a "<" stands in strings alone: escaped, none of them can end the element that holds the data.
    data = json.dumps(document(report), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "title": escape(report.title),
        "styles": styles,
        "data": data,
        "scripts": f'(() => {{\n"use strict";\n{scripts}\n}})();',
    }
    before, *rest = _asset("page.html").split("{{")
    pieces = [before]
    for piece in rest:
        name, _, after = piece.partition("}}")
        pieces += [parts[name], after]
    return "".join(pieces)


def write_page(path: str | Path, report: Report) -> None:
    """Write the page, atomically."""
    write_atomic(path, page(report))


def _asset(name: str) -> str:
    return files("ds_dip.reporting.viewer").joinpath("assets", name).read_text(encoding="utf-8")
