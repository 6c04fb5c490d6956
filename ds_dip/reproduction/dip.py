"""DIP's evaluation as one document (``ds-dip/reproduction`` 1): results, and each figure beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ds_dip.reproduction.cases import MODELS, Effort, make_case
from ds_dip.reproduction.published import PAPER, TOLERANCE, UNEVENNESS
from ds_dip.reproduction.results import (
    ASSUMPTIONS,
    H20_SYSTEMS,
    STEPS,
    SYSTEMS,
    TITLES,
    Comparison,
    Entry,
    Progress,
    ablation,
    compare_ablation,
    compare_end_to_end,
    compare_h20,
    end_to_end,
    h20,
)

FORMAT = "ds-dip/reproduction"
#: The model of the ablation and of the H20 table.
ABLATED = "VLM-S"
FULL = Effort(microbatches=32, batches=2, evaluations=2000, partition_evaluations=60, most_laps=6)
QUICK = Effort(microbatches=8, batches=1, evaluations=200, partition_evaluations=12, most_laps=4)
#: The models of the quick run: one of each family.
QUICK_MODELS = ("VLM-S", "T2V-S")
#: Parts of the paper's evaluation that are not simulated.
MISSING = (
    "images that vary over 40 iterations",
    "sub-microbatches of other sizes than the partitioner's, and the spread of schedules with them",
    "schedules found over the time of a search, against exact solvers",
    "memory over time, and against coarse Optimus at equal peak",
    "utilisation (MFU)",
    "the bubbles of the motivation (ViT 5B and a 32B language model in 16 stages)",
    "VLM-XL and T2V-XL on thousands of H100",
    "errors of the paper's simulator",
)
_CALIBRATION = (
    "Nothing is calibrated: seconds follow from data sheets, and only ratios of seconds are compared. The paper does "
    "not say its batch size, so its absolute seconds cannot be."
)


def total(quick: bool) -> int:
    """How many systems a run simulates, and so how often it tells its progress."""
    return 2 * STEPS + len(SYSTEMS) * len(QUICK_MODELS if quick else MODELS) + len(H20_SYSTEMS)


def reproduce(
    models: Path, devices: Path, *, quick: bool = False, progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Simulate everything and compare; ``models`` and ``devices`` are folders of descriptions.

    Deterministic: searches count schedules, not seconds. Raises FileError for a file that cannot be used.
    """
    effort = QUICK if quick else FULL
    names = QUICK_MODELS if quick else tuple(MODELS)
    ablated = make_case(ABLATED, effort, models, devices)
    steps = ablation(ablated, progress)
    free = ablation(make_case(ABLATED, effort, models, devices, limited=False), progress)
    cases = [make_case(name, effort, models, devices) for name in names]
    tables = [end_to_end(case, progress) for case in cases]
    other = h20(make_case(ABLATED, effort, models, devices, "h20"), progress)
    return {
        "format": FORMAT,
        "version": 1,
        "paper": PAPER,
        "quick": quick,
        "effort": asdict(effort),
        "models": list(names),
        "calibration": _CALIBRATION,
        "tolerance": TOLERANCE,
        "unevenness": {"paper": UNEVENNESS, "ours": {case.name: case.unevenness for case in cases}},
        "assumptions": dict(ASSUMPTIONS),
        "missing": list(MISSING),
        "comparisons": {
            "ablation": _comparisons(compare_ablation(steps)),
            "end_to_end": _comparisons(compare_end_to_end(tables)),
            "h20": _comparisons(compare_h20(other)),
        },
        "explained": {"unlimited": _comparisons(compare_ablation(free))},
        "results": {
            "ablation": [_entry(entry) for entry in steps],
            "unlimited": [_entry(entry) for entry in free],
            "end_to_end": [_entry(entry) for entries in tables for entry in entries],
            "h20": [_entry(entry) for entry in other],
        },
    }


def _comparisons(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "what": own.figure.what,
            "source": own.figure.source,
            "paper": own.figure.speedup,
            "ours": own.ours,
            "deviation": own.deviation,
            "agrees": own.agrees,
            "where": own.where,
            "assumptions": list(own.assumptions),
        }
        for own in found
    ]


def _entry(entry: Entry) -> dict[str, Any]:
    own = entry.outcome
    return {
        "model": entry.model,
        "system": entry.system,
        "title": TITLES[entry.system],
        "mean_s": None if own is None else own.mean,
        "seconds": [] if own is None else list(own.seconds),
        "bound_gap": None if own is None else own.gap,
        "detail": "" if own is None else own.detail,
        "memory": "" if own is None else own.strategy,
        "refusal": entry.refusal,
    }
