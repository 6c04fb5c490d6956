"""All experiments, in the order of the report."""

from __future__ import annotations

from ds_dip.reproduction.ablation import ABLATE, ON_H20
from ds_dip.reproduction.calibration import CALIBRATE
from ds_dip.reproduction.convergence import SEARCHES
from ds_dip.reproduction.cutting import CUT
from ds_dip.reproduction.ends import ENDS
from ds_dip.reproduction.experiment import Experiment, Part
from ds_dip.reproduction.footprints import FOOTPRINTS
from ds_dip.reproduction.motivation import MOTIVATE
from ds_dip.reproduction.scale import SCALE
from ds_dip.reproduction.varying import VARY

EXPERIMENTS: tuple[Experiment, ...] = (
    CALIBRATE, MOTIVATE, ENDS, ON_H20, ABLATE, VARY, CUT, SEARCHES, FOOTPRINTS, SCALE,
)  # fmt: skip


def parts_of(quick: bool) -> dict[str, Part]:
    """Every part of a run by its key, the calibration's first: the others are run with what it finds."""
    return {part.key: part for experiment in EXPERIMENTS for part in experiment.parts(quick)}
