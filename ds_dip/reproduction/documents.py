"""What documents of all papers (``ds-dip/reproduction`` 2) have alike: experiments, figures beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ds_dip.reproduction.experiment import Comparison, Experiment, Result, speedup

FORMAT, VERSION = "ds-dip/reproduction", 2


def experiments_of(
    experiments: Sequence[Experiment], quick: bool, results: Mapping[str, Result]
) -> list[dict[str, Any]]:
    """Those that have parts in this run, with what these found."""
    return [_experiment(own, quick, results) for own in experiments if own.parts(quick)]


def named_of(assumptions: Mapping[str, str], experiments: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The assumptions that any of the experiments' figures names."""
    named = {name for own in experiments for figure in own["comparisons"] for name in figure["assumptions"]}
    return {name: text for name, text in assumptions.items() if name in named}


def _experiment(own: Experiment, quick: bool, results: Mapping[str, Result]) -> dict[str, Any]:
    keys = [part.key for part in own.parts(quick)]
    rows = [row for key in keys for row in results[key].rows]
    groups = {row.group: [other for other in rows if other.group == row.group] for row in rows}
    lines = {plot.name: [line for key in keys for line in results[key].lines.get(plot.name, ())] for plot in own.plots}
    return {
        "key": own.key,
        "title": own.title,
        "text": f"{own.text} The quick run: {own.quick}" if quick and own.quick else own.text,
        "columns": dict(own.columns),
        "reference": own.reference,
        "winner": own.winner,
        "numbers": {key: dict(results[key].numbers) for key in keys},
        "comparisons": [_comparison(comparison) for comparison in own.compare(results)],
        "rows": [
            asdict(row)
            | {
                "speed": speedup(groups[row.group], row.system, own.reference),
                "gain": speedup(groups[row.group], own.winner, row.system),
            }
            for row in rows
        ],
        "plots": [
            asdict(plot) | {"lines": [{"name": line.name, "points": list(line.points)} for line in lines[plot.name]]}
            for plot in own.plots
        ],
    }


def _comparison(own: Comparison) -> dict[str, Any]:
    return {
        "what": own.figure.what,
        "source": own.figure.source,
        "unit": own.figure.unit,
        "limit": own.figure.limit,
        "paper": own.figure.value,
        "ours": own.ours,
        "deviation": own.deviation,
        "agrees": own.agrees,
        "where": own.where,
        "assumptions": list(own.assumptions),
        "changed": dict(own.changed),
    }
