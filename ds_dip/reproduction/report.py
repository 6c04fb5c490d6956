"""A ``ds-dip/reproduction`` document as a report in Markdown: what differs first, then every experiment."""

from __future__ import annotations

from ds_dip.reproduction.tables import (
    Document,
    Table,
    drawings_of,
    every,
    explained,
    figures,
    headline,
    results,
    setting,
    unevenness,
)

#: Rows of a table here; the page and the document have all.
MOST_ROWS = 48
#: Where drawings are, from the report.
PLOTS = "plots"


def report(document: Document) -> str:
    """The whole report; its drawings are files in ``PLOTS``."""
    lines = [f"# {document['paper']}: its evaluation in simulation", "", setting(document), ""]
    lines += [f"**{headline(document)}** {explained(document)}", "", document["calibration"]["text"], ""]
    lines += [f"## What differs by more than {document['tolerance']:.0%}", ""]
    lines += [*_table(figures(every(document), differing=True)), ""]
    lines += ["What may be behind a difference; *changed* is our figure with that assumption changed:", ""]
    lines += [f"- *{name}*: {sentence}" for name, sentence in document["assumptions"].items()]
    if uneven := unevenness(document):
        lines += ["", uneven]
    lines += ["", _drawing("figures", "figures"), ""]
    lines += ["## What is not here", "", *(f"- {own}" for own in document["missing"])]
    for part in document["experiments"]:
        lines += ["", f"## {part['title']}", "", part["text"], ""]
        if part["comparisons"]:
            lines += [*_table(figures(part["comparisons"])), ""]
        for name in drawings_of(part):
            lines += [_drawing(f"{part['key']}-{name}", f"{part['title']}, {name}"), ""]
        lines += _table(results(part, MOST_ROWS))
    return "\n".join(lines) + "\n"


def _drawing(name: str, title: str) -> str:
    return f"![{title}]({PLOTS}/{name}.svg)"


def _table(table: Table) -> list[str]:
    lines = [_line(table.columns), f"|{'---|' * len(table.columns)}"]
    return lines + [_line(row) for row in table.rows]


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
