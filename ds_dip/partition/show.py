"""A partition file's search as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

#: Runs of layer counts longer than this are told by the least and the most.
_WIDTH = 18


def candidates_table(document: Mapping[str, Any]) -> Table:
    """The rule and the best candidates of a ``ds-dip/partition`` file that a search made, fastest first."""
    search = document["search"]
    rule = search["rule"]
    rows = [("rule", rule)] if rule is not None else []
    rows += [(str(number), row) for number, row in enumerate(search["candidates"], start=1)]
    names = list(document["modules"])
    cut = [name for name in names if any(row["modules"][name]["sub_microbatch"] is not None for _, row in rows)]
    table = Table(
        title=f"{document['model']} on {document['ranks']} ranks, mean of {search['batches']} batches",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in ("", *names, "placed"):
        table.add_column(name, no_wrap=True)
    for name in ("ms", "to rule", "bubble", "gap", "GB"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, row in rows:
        modules = [_module(row["modules"][name], name in cut) for name in names]
        table.add_row(label, *modules, _placed(row["modules"], document["ranks"]), *_numbers(row, rule))
    return table


def _module(own: Mapping[str, Any], cut: bool) -> str:
    size = "whole" if own["sub_microbatch"] is None else own["sub_microbatch"]
    return f"K={own['laps']} {f'B={size} ' if cut else ''}{layers(own['parts'])}"


def _placed(modules: Mapping[str, Any], ranks: int) -> str:
    looped = all(rank == index % ranks for own in modules.values() for index, rank in enumerate(own["ranks"]))
    return "looped" if looped else "zigzag"


def _numbers(row: Mapping[str, Any], rule: Mapping[str, Any] | None) -> list[str]:
    memory = max(map(sum, zip(row["state_bytes"], row["activation_bytes"], strict=True)))
    ahead = "" if rule is None or not rule["mean_s"] else f"{100 * (row['mean_s'] / rule['mean_s'] - 1):+.2f} %"
    return [
        f"{1e3 * row['mean_s']:.1f}",
        ahead,
        f"{100 * row['bubble']:.1f} %",
        f"{100 * row['bound_gap']:.1f} %",
        f"{memory / 1e9:.3g}",
    ]


def layers(parts: Sequence[int]) -> str:
    """Layers a chunk in short: ``15 16x3``, or ``1-3`` where that is long."""
    runs: list[list[int]] = []
    for size in parts:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    text = " ".join(str(size) if count == 1 else f"{size}x{count}" for size, count in runs)
    return text if len(text) <= _WIDTH else f"{min(parts)}-{max(parts)}"
