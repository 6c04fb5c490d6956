"""What both forms of the report show of a ``ds-dip/reproduction`` document: cells of its tables, and its drawings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ds_dip.reproduction import charts
from ds_dip.reproduction.published import COUNT, SECONDS, SHARE, SPEED

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first column names the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def every(document: Document) -> list[Document]:
    """All comparisons that there is a published figure for."""
    return [own for part in document["experiments"] for own in part["comparisons"] if own["agrees"] is not None]


def headline(document: Document) -> str:
    """How many figures agree."""
    found = every(document)
    within = sum(own["agrees"] for own in found)
    speeds = [own for own in found if own["unit"] == SPEED]
    gains = sum(_alike(own, document["tolerance"]) for own in speeds)
    return (
        f"{within} of {len(found)} figures are within {document['tolerance']:.0%} of the paper's. A gain is compared "
        f"as the throughput that it gives (+96% beside +76% is 11% apart); gain against gain {gains} of {len(speeds)} "
        "would be within it."
    )


def explained(document: Document) -> str:
    """How many of those that differ do not when one assumption is changed, and which."""
    differing = [own for own in every(document) if not own["agrees"]]
    found = [
        [name for name, other in own["changed"].items() if abs(other / own["paper"] - 1) <= document["tolerance"]]
        for own in differing
        if own["paper"]
    ]
    counts = Counter(name for own in found for name in own)
    by_name = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    names = f" ({by_name})" if by_name else ""
    return f"Of the {len(differing)} others {sum(map(bool, found))} are within it with one assumption changed{names}."


def _alike(own: Document, tolerance: float) -> bool:
    """Whether gains are that near, which is much stricter where they are small."""
    return own["ours"] is not None and bool(abs((own["ours"] - 1) / (own["paper"] - 1) - 1) <= tolerance)


def setting(document: Document) -> str:
    """What is simulated, in a sentence or two."""
    text: str = document["setting"]
    if document["quick"]:
        text += " This is the quick run: fewer models, batches and schedules than the figures need to settle."
    return text


def unevenness(document: Document) -> str:
    """How uneven microbatches are; nothing where no paper tells it."""
    own = document["unevenness"]
    if own is None:
        return ""
    times = ", ".join(f"{ratio:.1f} ({name})" for name, ratio in own["ours"].items())
    return f"The heaviest microbatch takes {times} times as long as the lightest; the paper's, {own['paper']}."


def value(unit: str, number: float | None) -> str:
    """A figure as text; a speed as the gain that it is."""
    if number is None:
        return "not known"
    if unit == SECONDS:
        return f"{number:.3g} s"
    if unit == SHARE:
        return f"{number:.1%}"
    return f"{number:g}" if unit == COUNT else f"{number - 1:+.1%}"


def ours(own: Document) -> str:
    """Our figure as text."""
    return "not simulated" if own["ours"] is None else value(own["unit"], own["ours"])


def published(own: Document) -> str:
    """The paper's figure as text."""
    return f"{'at most ' if own['limit'] else ''}{value(own['unit'], own['paper'])}"


def deviation(own: Document) -> str:
    """How far ours is above the paper's."""
    return "-" if own["deviation"] is None else f"{own['deviation']:+.1%}"


def what(own: Document) -> str:
    """What a figure is, and where ours is."""
    return f"{own['what']} (here {own['where']})" if own["where"] else str(own["what"])


def reasons(own: Document) -> str:
    """What may be behind a difference: assumptions by name, each with our figure where it is changed."""
    found = []
    for name in own["assumptions"]:
        text = name
        if name in own["changed"]:
            other = own["changed"][name]
            text += f" (changed: {value(own['unit'], other)}"
            text += f", {other / own['paper'] - 1:+.0%} to the paper's)" if own["paper"] else ")"
        found.append(text)
    return ", ".join(found) or "-"


def figures(comparisons: Sequence[Document], *, differing: bool = False) -> Table:
    """Figures beside the paper's."""
    columns = ("figure", "ours", "paper", "ours to paper", "behind a difference")
    rows = tuple(
        (what(own), ours(own), published(own), deviation(own), reasons(own))
        for own in comparisons
        if not differing or own["agrees"] is False
    )
    return Table(columns, rows)


def results(part: Document, most: int | None = None) -> Table:
    """What was simulated, row by row; with ``most``, of evenly many groups where there are more rows."""
    rows = part["rows"]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    if most is not None and len(rows) > most:
        step = -(-len(rows) // most)
        groups = groups[::step]
    values = [name for name in part["columns"] if any(name in row["values"] for row in rows)]
    speeds = any(row["speed"] is not None for row in rows)
    gains = any(row["gain"] is not None for row in rows)
    winner = next((row["title"] for row in rows if row["system"] == part["winner"]), "").partition(",")[0]
    noted = [name for name in ("memory", "settings") if any(row["notes"].get(name) for row in rows)]
    refused = any("refusal" in row["notes"] for row in rows)
    reference = next((row["title"] for row in rows if row["system"] == part["reference"]), "").partition(",")[0]
    columns = ["of", "system", "seconds"]
    columns += [f"throughput over {reference}"] * speeds + [f"{winner} over it"] * gains
    columns += ["over its lower bound", *values, *noted, *["why not"] * refused]
    cells = []
    for row in rows:
        if row["group"] not in groups:
            continue
        own = [row["group"], row["title"], "-" if row["seconds"] is None else f"{row['seconds']:.3f}"]
        own += [_gain(row["speed"])] * speeds
        own += [_gain(row["gain"])] * gains
        own += ["-" if row["gap"] is None else f"{max(0.0, row['gap']):.1%}"]
        own += [_cell(part["columns"][name], row["values"].get(name)) for name in values]
        own += [row["notes"].get(name, "") for name in noted] + [row["notes"].get("refusal", "")] * refused
        cells.append(tuple(own))
    return Table(tuple(columns), tuple(cells))


def _gain(speed: float | None) -> str:
    return "-" if speed is None else f"{speed - 1:+.1%}"


def _cell(kind: str, number: float | None) -> str:
    if number is None:
        return "-"
    match kind:
        case "share":
            return f"{number:.1%}"
        case "GB":
            return f"{number:.1f} GB"
        case "seconds":
            return f"{number:.3g} s"
        case "yes":
            return "yes" if number else "no"
        case "times":
            return f"{number:.2f} times"
        case _:
            return f"{number:g}"


def drawings(document: Document) -> dict[str, str]:
    """Every drawing by a name that suits a file: of all figures, then of each experiment its own."""
    entries = [(own["what"], own["deviation"]) for own in every(document) if _drawn(own)]
    found = {"figures": charts.deviations(entries, document["tolerance"])}
    for part in document["experiments"]:
        for name, drawing in drawings_of(part).items():
            found[f"{part['key']}-{name}"] = drawing
    return {name: drawing for name, drawing in found.items() if drawing}


def _drawn(own: Document) -> bool:
    return own["deviation"] is not None and not own["limit"]


def drawings_of(part: Document) -> dict[str, str]:
    """The drawings of one experiment: figures beside the paper's, throughput by group, and its lines."""
    groups = [(own["what"], _bars(own)) for own in part["comparisons"] if own["unit"] not in (SECONDS, COUNT)]
    found = {"figures": charts.bars([own for own in groups if len(own[1]) > 1], "beside the paper's")}
    gains: dict[str, list[tuple[str, float]]] = {}
    for row in part["rows"]:
        if row["gain"] is not None and row["system"] != part["winner"]:
            gains.setdefault(row["group"], []).append((f"over {row['title']}", 100 * (row["gain"] - 1)))
    found["throughput"] = charts.bars(list(gains.items()), "throughput that ours gains")
    for plot in part["plots"]:
        axes = plot["title"], plot["x"], plot["y"]
        found[plot["name"]] = charts.lines(plot["lines"], *axes, logarithmic=plot["logarithmic"])
    return {name: drawing for name, drawing in found.items() if drawing}


def _bars(own: Document) -> list[tuple[str, float]]:
    """The paper's figure, ours, and ours with assumptions changed, in per cent."""
    named = {"paper": own["paper"], "ours": own["ours"]}
    named |= {f"ours, {name} changed": number for name, number in own["changed"].items()}
    base = 0.0 if own["unit"] == SHARE else 1.0
    return [(name, 100 * (number - base)) for name, number in named.items() if number is not None]
