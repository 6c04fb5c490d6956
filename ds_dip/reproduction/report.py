"""A ``ds-dip/reproduction`` document as a report in Markdown: what differs first, then every table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEADINGS = {
    "ablation": "Ablation on VLM-S",
    "unlimited": "Ablation on VLM-S, devices without a memory limit",
    "end_to_end": "End to end",
    "h20": "VLM-S on H20",
}


def report(document: Mapping[str, Any]) -> str:
    """The whole report."""
    effort = document["effort"]
    batches = f"{effort['batches']} sampled {'batch' if effort['batches'] == 1 else 'batches'}"
    shape = f"{batches} of {effort['microbatches']} microbatches, at most {effort['evaluations']} schedules a search"
    lines = [
        f"# {document['paper']}: its evaluation in simulation",
        "",
        f"Simulated from data sheets: {', '.join(document['models'])}; {shape}. Nothing of it was run on a device.",
        "",
        document["calibration"],
    ]
    if document["quick"]:
        lines += ["", "This is the quick run: fewer models, batches and schedules than the figures need to settle."]
    lines += ["", f"## What differs by more than {document['tolerance']:.0%}", ""]
    every = [own for group in document["comparisons"].values() for own in group]
    differing = [own for own in every if not own["agrees"]]
    lines.append(f"{len(differing)} of {len(every)} figures{':' if differing else '.'}")
    lines += [""] * bool(differing)
    lines += [f"- {_difference(own)} Why, as far as known: {', '.join(own['assumptions'])}." for own in differing]
    lines += ["", "What may be behind a difference:", ""]
    lines += [f"- *{name}*: {sentence}" for name, sentence in document["assumptions"].items()]
    free = document["explained"]["unlimited"]
    within = f"{sum(own['agrees'] for own in free)} of {len(free)} figures of the ablation are within that share"
    lines += ["", f"Without a memory limit, so that nothing is computed again, {within}."]
    uneven = document["unevenness"]
    times = ", ".join(f"{ratio:.1f} ({name})" for name, ratio in uneven["ours"].items())
    lines += [
        "",
        f"The heaviest microbatch takes {times} times as long as the lightest; the paper's, {uneven['paper']}.",
    ]
    lines += ["", "## What is not here", "", "Of the paper's evaluation this report does not have:", ""]
    lines += [f"- {own};" for own in document["missing"]]
    lines[-1] = lines[-1][:-1] + "."
    beside = {**document["comparisons"], **document["explained"]}
    for group, heading in _HEADINGS.items():
        lines += ["", f"## {heading}", "", *_comparisons(beside[group])]
        lines += ["", *_results(document["results"][group])]
    return "\n".join(lines) + "\n"


def _difference(own: Mapping[str, Any]) -> str:
    if own["ours"] is None:
        return f"{_what(own)}: not simulated, the paper has {_gain(own['paper'])}."
    return f"{_what(own)}: {_gain(own['ours'])}, the paper has {_gain(own['paper'])} ({own['deviation']:+.1%})."


def _what(own: Mapping[str, Any]) -> str:
    return f"{own['what']} (here {own['where']})" if own["where"] else str(own["what"])


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    cells = [
        [
            _what(own),
            _gain(own["ours"]),
            _gain(own["paper"]),
            "-" if own["deviation"] is None else f"{own['deviation']:+.1%}",
            own["source"],
            ", ".join(own["assumptions"]),
        ]
        for own in rows
    ]
    return _table(["throughput", "ours", "paper", "ours to paper", "where", "behind a difference"], cells)


def _results(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    reference = {own["model"]: own["mean_s"] for own in rows if own["system"] == "megatron"}
    cells = []
    for own in rows:
        mean, base = own["mean_s"], reference.get(own["model"])
        if mean is None:
            cells.append([own["model"], own["title"], "-", "-", "-", "", own["refusal"]])
            continue
        cells.append(
            [
                own["model"],
                own["title"],
                f"{mean:.3f}",
                "-" if base is None else _gain(base / mean),
                "-" if own["bound_gap"] is None else f"{own['bound_gap']:.1%}",
                own["memory"],
                own["detail"],
            ]
        )
    columns = ["model", "system", "seconds", "throughput over Megatron", "over its lower bound", "memory", "settings"]
    return _table(columns, cells)


def _gain(speedup: float | None) -> str:
    return "-" if speedup is None else f"{speedup - 1:+.1%}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return lines + [f"| {' | '.join(own)} |" for own in rows]
