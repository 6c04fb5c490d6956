"""The ablation on VLM-S, its H20 table, and both again with one assumption changed at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ds_dip.reproduction import contenders
from ds_dip.reproduction.calibration import KEY as CALIBRATION
from ds_dip.reproduction.experiment import (
    Comparison,
    Experiment,
    Part,
    Progress,
    Result,
    Results,
    Row,
    Settings,
    simulate,
    speedup,
)
from ds_dip.reproduction.published import ABLATED, ABLATION, H20, H20_TIMES, UNEVENNESS
from ds_dip.reproduction.systems import OURS, SYSTEMS, steps

#: The model of the ablation and of the H20 table.
MODEL = "VLM-S"
H20_SYSTEMS = ("fsdp", "exposed", "megatron", "rule", OURS)
#: What an assumption is changed to, and the words for it.
CHANGES: Mapping[str, str] = {
    "memory": "without a memory limit",
    "data": f"heaviest {UNEVENNESS} times the lightest",
    "batch": "half as many microbatches",
}
_BEHIND: Mapping[str, tuple[str, ...]] = {
    "partitioner": ("static", "memory", "data", "batch"),
    "interleaving": ("memory", "steps", "data", "batch"),
    "reordering": ("memory", "steps", "data", "batch"),
    "memory": ("memory", "steps", "data", "batch"),
}


def changed(settings: Settings, assumption: str) -> dict[str, Any]:
    """What a case is made with when an assumption is changed."""
    effort = settings.effort
    found: dict[str, dict[str, Any]] = {
        "memory": {"limited": False},
        "data": {"unevenness": UNEVENNESS},
        "batch": {"effort": replace(effort, microbatches=effort.microbatches // 2)},
    }
    return found[assumption]


def _ablate(settings: Settings, progress: Progress, **how: Any) -> Result:
    case = settings.case(MODEL, **how)
    partition = contenders.rule(case)
    rows = simulate(case, steps(partition, contenders.describe(case, partition)), progress)
    return Result(tuple(rows), numbers={"unevenness": case.unevenness})


def _without(settings: Settings, progress: Progress, assumption: str) -> Result:
    found = _ablate(settings, progress, **changed(settings, assumption))
    rows = tuple(replace(row, group=f"{row.group}, {CHANGES[assumption]}") for row in found.rows)
    return replace(found, rows=rows)


def _h20(settings: Settings, progress: Progress, assumption: str = "") -> Result:
    case = settings.case(MODEL, "h20", **(changed(settings, assumption) if assumption else {}))
    names = ("megatron", "rule") if assumption else H20_SYSTEMS
    group = f"{MODEL} on H20{f', {CHANGES[assumption]}' if assumption else ''}"
    return Result(tuple(simulate(case, {name: SYSTEMS[name] for name in names}, progress, group)))


def parts(quick: bool) -> tuple[Part, ...]:
    """The ablation, and with each assumption changed."""
    own = Part("ablation", "ablation", 2 if quick else 20, len(ABLATION) + 2, _ablate)
    changes = [
        Part(
            f"ablation-{name}",
            f"ablation, {what}",
            2 if quick else 20,
            len(ABLATION) + 2,
            partial(_without, assumption=name),
        )
        for name, what in CHANGES.items()
        if name == "memory" or not quick
    ]
    return own, *changes


def h20_parts(quick: bool) -> tuple[Part, ...]:
    """The table, and Megatron and DIP with each assumption changed."""
    own = Part("h20", "VLM-S on H20", 2 if quick else 40, len(H20_SYSTEMS), _h20)
    if quick:
        return (own,)
    changes = [
        Part(
            f"h20-{name}",
            f"VLM-S on H20, {what}",
            6,
            2,
            partial(_h20, assumption=name),
        )
        for name, what in CHANGES.items()
    ]
    return own, *changes


def _compare(results: Results) -> list[Comparison]:
    """Each part's cumulative throughput over Megatron; where there is a calibration, seconds too."""
    rows = results["ablation"].rows
    found = [
        Comparison(
            figure,
            speedup(rows, name, "megatron"),
            _BEHIND[name],
            changed=_changed(results, "ablation", name, "megatron"),
        )
        for name, figure in ABLATION.items()
    ]
    if CALIBRATION in results:
        seconds = {row.system: row.seconds for row in rows}
        found += [Comparison(figure, seconds[name], _BEHIND[name]) for name, figure in ABLATED.items()]
    return found


def _compare_h20(results: Results) -> list[Comparison]:
    """Throughput of ours over FSDP and over Megatron; where there is a calibration, seconds too."""
    rows = results["h20"].rows
    exposed = speedup(rows, OURS, "exposed")
    # With an assumption changed the rule's partition stands for the searched one.
    plain = _changed(results, "h20", "rule", "megatron")
    found = [
        Comparison(
            H20["fsdp"],
            speedup(rows, OURS, "fsdp"),
            ("fsdp", "data", "batch"),
            changed={} if exposed is None else {"fsdp": exposed},
        ),
        Comparison(H20["megatron"], speedup(rows, OURS, "megatron"), ("memory", "data", "batch"), changed=plain),
    ]
    if CALIBRATION in results:
        seconds = {{OURS: "dip"}.get(row.system, row.system): row.seconds for row in rows}
        half = {{"rule": "dip"}.get(row.system, row.system): row.seconds for row in _rows(results, "h20-batch")}
        changed = {name: {"batch": own} for name, own in half.items() if own is not None}
        found += [
            Comparison(figure, seconds[name], ("h20", "batch"), changed=changed.get(name, {}))
            for name, figure in H20_TIMES.items()
        ]
    return found


def _changed(results: Results, prefix: str, system: str, over: str) -> dict[str, float]:
    """The throughput with each assumption changed, as far as that was run."""
    found = {name: _rows(results, f"{prefix}-{name}") for name in CHANGES}
    speeds = {name: speedup(rows, system, over) for name, rows in found.items()}
    return {name: speed for name, speed in speeds.items() if speed is not None}


def _rows(results: Results, key: str) -> tuple[Row, ...]:
    return results[key].rows if key in results else ()


ABLATE = Experiment(
    "ablation",
    "Ablation on VLM-S",
    "The rule's partition step by step: interleaved 1F1B on it, the dual-queue order, a searched order under the same "
    "memory strategies, and orders and strategies searched together. Then the same with one assumption changed.",
    parts,
    _compare,
    quick="of the assumptions the memory limit alone is changed.",
)
ON_H20 = Experiment(
    "h20",
    "VLM-S on H20",
    "The three systems of the paper's table on 16 H20, FSDP also with nothing hidden, and with one assumption changed.",
    h20_parts,
    _compare_h20,
    winner=OURS,
    quick="no assumption is changed.",
)
