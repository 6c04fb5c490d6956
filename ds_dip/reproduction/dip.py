"""DIP's evaluation as one document (``ds-dip/reproduction`` 2): every experiment, each figure beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ds_dip.reproduction.calibration import KEY as CALIBRATION
from ds_dip.reproduction.calibration import WANTED
from ds_dip.reproduction.cases import Effort
from ds_dip.reproduction.catalogue import EXPERIMENTS, parts_of
from ds_dip.reproduction.comparison import ASSUMPTIONS
from ds_dip.reproduction.experiment import Comparison, Experiment, Result, Settings, speedup
from ds_dip.reproduction.published import PAPER, TOLERANCE, UNEVENNESS
from ds_dip.reproduction.running import Watch, run_parts

FORMAT, VERSION = "ds-dip/reproduction", 2
FULL = Effort(microbatches=32, batches=2, evaluations=2000, partition_evaluations=60, most_laps=6)
QUICK = Effort(microbatches=8, batches=1, evaluations=200, partition_evaluations=12, most_laps=4)
#: Parts of the paper's evaluation that are not simulated, with why.
MISSING = (
    "the errors of the paper's simulator, for which its devices would be needed",
    "training runs and their convergence: nothing here is run on a device",
    "the paper's utilisation (MFU) at large scale, which is not known to us: ours stands alone",
    "end-to-end figures model by model: the paper's are known as ranges only",
)


def reproduce(
    models: Path, devices: Path, folder: Path, *, quick: bool = False, jobs: int = 1, watch: Watch = lambda _: None
) -> dict[str, Any]:
    """Simulate what is not in ``folder`` yet, and compare; ``models`` and ``devices`` are folders of descriptions.

    Deterministic, but for seconds that searches take and what an exact solver proves in its time: searches count
    schedules, not seconds. Raises FileError for a file that cannot be used.
    """
    settings = Settings(quick, QUICK if quick else FULL, models, devices)
    parts = parts_of(quick)
    results: dict[str, Result] = {}
    if CALIBRATION in parts:
        results |= run_parts(settings, [parts.pop(CALIBRATION)], folder, 1, watch)
        settings = replace(settings, factor=results[CALIBRATION].numbers["factor"])
    results |= run_parts(settings, list(parts.values()), folder, jobs, watch)
    return document(settings, results)


def document(settings: Settings, results: Mapping[str, Result]) -> dict[str, Any]:
    """The document of what all parts found."""
    uneven = {
        result.rows[0].group: result.numbers["unevenness"]
        for key, result in results.items()
        if key.startswith("end-to-end-")
    }
    experiments = [_experiment(own, settings.quick, results) for own in EXPERIMENTS if own.parts(settings.quick)]
    named = {name for own in experiments for figure in own["comparisons"] for name in figure["assumptions"]}
    return {
        "format": FORMAT,
        "version": VERSION,
        "paper": PAPER,
        "quick": settings.quick,
        "effort": asdict(settings.effort),
        "calibration": _calibration(results),
        "tolerance": TOLERANCE,
        "unevenness": {"paper": UNEVENNESS, "ours": uneven},
        "assumptions": {name: text for name, text in ASSUMPTIONS.items() if name in named},
        "missing": list(MISSING),
        "experiments": experiments,
    }


def _calibration(results: Mapping[str, Result]) -> dict[str, Any]:
    if CALIBRATION not in results:
        return {
            "factor": None,
            "text": "Nothing is calibrated: the quick run's batches are not those of a figure in seconds, and only "
            "ratios of seconds are compared.",
        }
    own = results[CALIBRATION]
    plain, share = own.rows[0].seconds, own.numbers["share"]
    return {
        "factor": own.numbers["factor"],
        "text": f"Calibrated on one model and one figure: Megatron's iteration of VLM-S on 16 H800 in the ablation, "
        f"{WANTED} s. One factor, {own.numbers['factor']:.3f}, multiplies the share of its arithmetic that every "
        f"device reaches (H800: {share:.3f} of its peak); uncalibrated that iteration takes {plain:.2f} s. All other "
        "figures are predictions. The paper does not say its batch size, so the factor also stands for what ours "
        "differs from it.",
    }


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
