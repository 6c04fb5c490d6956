"""A ``ds-dip/reproduction`` document as one page of HTML, all in it: for screens and phones, light and dark."""

from __future__ import annotations

from html import escape

from ds_dip.reproduction import charts
from ds_dip.reproduction.tables import (
    Document,
    Table,
    deviation,
    drawings,
    every,
    explained,
    figures,
    headline,
    ours,
    published,
    reasons,
    results,
    setting,
    unevenness,
    what,
)

_STYLE = """
:root{--back:#fff;--ink:#222;--soft:#5c6670;--line:#dde1e5;--card:#f6f8f9;--good:#0b6b45;--bad:#a83a00;--link:#0060a8}
@media(prefers-color-scheme:dark){:root{--back:#14171a;--ink:#e4e7ea;--soft:#9aa5ae;--line:#30363c;--card:#1c2024;
--good:#54c794;--bad:#ff9d66;--link:#7dbbef}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:60rem;margin:0 auto;padding:1.5rem 1.1rem 4rem}
h1{font-size:1.7rem;line-height:1.25;margin:.4rem 0 1rem}h2{font-size:1.3rem;margin:2.8rem 0 .6rem;
padding-top:.8rem;border-top:1px solid var(--line)}
a{color:var(--link)}p{margin:.6rem 0}.soft{color:var(--soft)}
.tally{display:flex;gap:1rem;align-items:center;background:var(--card);border:1px solid var(--line);border-radius:.6rem;
padding:.9rem 1.1rem;margin:1rem 0}.tally strong{font-size:2rem;line-height:1;white-space:nowrap}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.45rem;padding:0;margin:1rem 0}
nav a{display:block;text-decoration:none;border:1px solid var(--line);border-radius:1rem;padding:.15rem .75rem;
font-size:.9rem}nav span{color:var(--soft)}
.wide{overflow-x:auto;margin:.8rem 0;border:1px solid var(--line);border-radius:.5rem}
table{border-collapse:collapse;width:100%;font-size:.87rem}
th,td{text-align:left;vertical-align:top;padding:.42rem .65rem;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}th{background:var(--card);font-weight:600}
td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}td.number{white-space:nowrap}
.rows td:first-child{min-width:13rem}.rows td:not(.number){min-width:9rem}.group th{background:none;padding-top:.9rem}
.good{color:var(--good)}.bad{color:var(--bad)}
figure{margin:1rem 0;padding:.6rem;border:1px solid var(--line);border-radius:.5rem;overflow-x:auto}
figure svg{display:block;width:100%;min-width:33rem}
details{margin:.8rem 0}summary{cursor:pointer;color:var(--link)}dt{font-weight:600;margin-top:.6rem}dd{margin:0}
@media(max-width:44rem){.cards,.cards tbody,.cards tr,.cards td{display:block}.cards thead{display:none}
.cards td{border:0;padding:.1rem .7rem;text-align:left!important;white-space:normal!important}
.cards tr{padding:.5rem 0;border-bottom:1px solid var(--line)}.cards td:first-child{font-weight:600}
.cards td:not(:first-child)::before{content:attr(data-label)": ";color:var(--soft)}}
"""
#: Rows above which a table is folded.
_FOLDED = 14


def page(document: Document) -> str:
    """The whole page."""
    drawn = drawings(document)
    found = every(document)
    within = sum(own["agrees"] for own in found)
    tally = f"{headline(document)} {explained(document)}"
    title = f"{document['paper']}: its evaluation in simulation"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title><style>{_STYLE}{charts.style()}</style></head><body><main>",
        f'<h1>{escape(title)}</h1><p class="soft">{escape(setting(document))}</p>',
        f'<div class="tally"><strong>{within} / {len(found)}</strong><span>{escape(tally)}</span></div>',
        f"<p>{escape(document['calibration']['text'])}</p>",
        _contents(document),
        f'<h2 id="differs">What differs by more than {document["tolerance"]:.0%}</h2>',
        _figures([own for own in found if not own["agrees"]]),
        "<details open><summary>What may be behind a difference</summary>",
        "<p>Where it says <em>changed</em>, that is our figure with the assumption changed.</p><dl>",
        *(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in document["assumptions"].items()),
        "</dl>",
        f"<p>{escape(uneven)}</p>" if (uneven := unevenness(document)) else "",
        "</details>",
        _drawing(drawn.get("figures", "")),
        '<h2 id="missing">What is not here</h2><ul>',
        *(f"<li>{escape(own)}</li>" for own in document["missing"]),
        "</ul>",
    ]
    for part in document["experiments"]:
        parts.append(f'<section id="{escape(part["key"])}"><h2>{escape(part["title"])}</h2>')
        parts.append(f"<p>{escape(part['text'])}</p>")
        if part["comparisons"]:
            parts.append(_figures(part["comparisons"]))
        parts += [_drawing(own) for name, own in drawn.items() if name.startswith(f"{part['key']}-")]
        parts += [_results(results(part)), "</section>"]
    return "\n".join(own for own in parts if own) + "\n</main></body></html>\n"


def _contents(document: Document) -> str:
    links = []
    for part in document["experiments"]:
        own = [comparison["agrees"] for comparison in part["comparisons"] if comparison["agrees"] is not None]
        tally = f" <span>{sum(own)}/{len(own)}</span>" if own else ""
        links.append(f'<li><a href="#{escape(part["key"])}">{escape(part["title"])}{tally}</a></li>')
    return f"<nav><ul>{''.join(links)}</ul></nav>"


def _figures(comparisons: list[Document]) -> str:
    """Figures beside the paper's; on a phone, a card each."""
    names = figures([]).columns
    rows = []
    for own in comparisons:
        kind = "" if own["agrees"] is None else " good" if own["agrees"] else " bad"
        texts = what(own), ours(own), published(own), deviation(own), reasons(own)
        kinds = "", "number", "number", f"number{kind}", ""
        cells = [
            f'<td class="{cell}" data-label="{escape(name)}">{escape(text)}</td>'
            for name, text, cell in zip(names, texts, kinds, strict=True)
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f'<th class="{"number" if 0 < n < 4 else ""}">{name}</th>' for n, name in enumerate(names))
    return _framed("cards", heads, "".join(rows))


def _results(table: Table) -> str:
    """What was simulated, in a frame that scrolls, under a line for every group; long ones are folded."""
    numbers = [_numeric([row[place] for row in table.rows]) for place in range(1, len(table.columns))]
    classes = ["number" if own else "" for own in numbers]
    names = zip(classes, table.columns[1:], strict=True)
    heads = "".join(f'<th class="{own}">{escape(name)}</th>' for own, name in names)
    rows, last = [], ""
    for group, *row in table.rows:
        if group != last:
            rows.append(f'<tr class="group"><th colspan="{len(row)}">{escape(group)}</th></tr>')
            last = group
        cells = [f'<td class="{own}">{escape(cell)}</td>' for own, cell in zip(classes, row, strict=True)]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    text = _framed("rows", heads, "".join(rows))
    if len(table.rows) <= _FOLDED:
        return text
    return f"<details><summary>All {len(table.rows)} rows</summary>{text}</details>"


def _framed(kind: str, heads: str, rows: str) -> str:
    table = f'<table class="{kind}"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _numeric(cells: list[str]) -> bool:
    """Whether all are numbers, or a dash in the place of one."""
    return all(cell == "-" or cell.lstrip("+-")[:1].isdigit() for cell in cells)


def _drawing(svg: str) -> str:
    return f"<figure>{svg}</figure>" if svg else ""
