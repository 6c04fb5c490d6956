"""DFLOP's evaluation as one document (``ds-dip/reproduction`` 2): every experiment, each figure beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ds_dip.reproduction.cases import Effort
from ds_dip.reproduction.catalogue import EXPERIMENTS, parts_of
from ds_dip.reproduction.dflop.comparison import ASSUMPTIONS
from ds_dip.reproduction.dflop.jobs import COMPUTE, DEVICE, EACH, PER_NODE
from ds_dip.reproduction.dflop.published import PAPER
from ds_dip.reproduction.documents import FORMAT, VERSION, experiments_of, named_of
from ds_dip.reproduction.experiment import Result, Settings
from ds_dip.reproduction.published import TOLERANCE
from ds_dip.reproduction.running import Watch, run_parts

KEY = "dflop"
#: No batch is searched: its order is the dual queue's, or 1F1B. ``partition_evaluations`` are layouts that a search
#: simulates first.
FULL = Effort(microbatches=256, batches=3, evaluations=1, partition_evaluations=16, most_laps=4)
QUICK = Effort(microbatches=256, batches=2, evaluations=1, partition_evaluations=8, most_laps=2)
#: Parts of the paper's evaluation that are not simulated, with why.
MISSING = (
    "training runs, their memory and their convergence: nothing here is run on a device",
    "the adaptive correction and what monitoring costs, which need a device: ds-dip bench adaptive measures ours here",
    "profiling's time (6 to 10 and 3 to 9 minutes in the paper), which is a device's",
    "figures model by model: the paper's are known as ranges only",
)


def reproduce(
    models: Path, devices: Path, folder: Path, *, quick: bool = False, jobs: int = 1, watch: Watch = lambda _: None
) -> dict[str, Any]:
    """Simulate what is not in ``folder`` yet, and compare; ``models`` and ``devices`` are folders of descriptions.

    Deterministic, but for seconds that balancing and choosing take and for what an exact solver finds in its time.
    Raises FileError for a file that cannot be used.
    """
    settings = Settings(quick, QUICK if quick else FULL, models, devices, paper=KEY)
    return document(settings, run_parts(settings, list(parts_of(quick, KEY).values()), folder, jobs, watch))


def document(settings: Settings, results: Mapping[str, Result]) -> dict[str, Any]:
    """The document of what all parts found."""
    experiments = experiments_of(EXPERIMENTS[KEY], settings.quick, results)
    effort = settings.effort
    return {
        "format": FORMAT,
        "version": VERSION,
        "paper": PAPER,
        "quick": settings.quick,
        "effort": asdict(effort),
        "setting": f"Simulated from data sheets: {DEVICE.upper()}s, {PER_NODE} a node, in {COMPUTE}, {EACH} samples a "
        f"GPU and batch; means over {effort.batches} batches that no search has seen. Nothing of it was run on a "
        "device.",
        "calibration": {
            "factor": None,
            "text": "Nothing is calibrated: the paper's known figures are ratios, of speeds and of idle times.",
        },
        "tolerance": TOLERANCE,
        "unevenness": None,
        "assumptions": named_of(ASSUMPTIONS, experiments),
        "missing": list(MISSING),
        "experiments": experiments,
    }
