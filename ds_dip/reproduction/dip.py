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
from ds_dip.reproduction.documents import FORMAT, VERSION, experiments_of, named_of
from ds_dip.reproduction.experiment import Result, Settings
from ds_dip.reproduction.published import PAPER, TOLERANCE, UNEVENNESS
from ds_dip.reproduction.running import Watch, run_parts

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
    experiments = experiments_of(EXPERIMENTS["dip"], settings.quick, results)
    return {
        "format": FORMAT,
        "version": VERSION,
        "paper": PAPER,
        "quick": settings.quick,
        "effort": asdict(settings.effort),
        "setting": _setting(settings),
        "calibration": _calibration(results),
        "tolerance": TOLERANCE,
        "unevenness": {"paper": UNEVENNESS, "ours": uneven},
        "assumptions": named_of(ASSUMPTIONS, experiments),
        "missing": list(MISSING),
        "experiments": experiments,
    }


def _setting(settings: Settings) -> str:
    effort = settings.effort
    batches = f"{effort.batches} sampled {'batch' if effort.batches == 1 else 'batches'}"
    return (
        f"Simulated from data sheets: {batches} of {effort.microbatches} microbatches, at most {effort.evaluations} "
        "schedules a search. Nothing of it was run on a device."
    )


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
