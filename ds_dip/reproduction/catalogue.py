"""All experiments of each paper, in the order of its report."""

from __future__ import annotations

from collections.abc import Mapping

from ds_dip.reproduction.ablation import ABLATE, ON_H20
from ds_dip.reproduction.calibration import CALIBRATE
from ds_dip.reproduction.convergence import SEARCHES
from ds_dip.reproduction.cutting import CUT
from ds_dip.reproduction.dflop.ends import AUDITION, CLUSTERS, PLACES
from ds_dip.reproduction.dflop.quality import QUALITY
from ds_dip.reproduction.dflop.times import TIMES
from ds_dip.reproduction.ends import ENDS
from ds_dip.reproduction.experiment import Experiment, Part
from ds_dip.reproduction.footprints import FOOTPRINTS
from ds_dip.reproduction.motivation import MOTIVATE
from ds_dip.reproduction.scale import SCALE
from ds_dip.reproduction.varying import VARY

EXPERIMENTS: Mapping[str, tuple[Experiment, ...]] = {
    "dip": (CALIBRATE, MOTIVATE, ENDS, ON_H20, ABLATE, VARY, CUT, SEARCHES, FOOTPRINTS, SCALE),
    "dflop": (PLACES, CLUSTERS, AUDITION, QUALITY, TIMES),
}


def parts_of(quick: bool, paper: str = "dip") -> dict[str, Part]:
    """Every part of a run by its key, a calibration's first: the others are run with what it finds."""
    return {part.key: part for experiment in EXPERIMENTS[paper] for part in experiment.parts(quick)}
