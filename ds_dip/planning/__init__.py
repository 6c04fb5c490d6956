"""Metadata of a global batch -> microbatches -> sub-microbatches -> the Problem that a schedule solves.

Everything here is a deterministic function of metadata and costs, so that every process decides alike.
"""

from ds_dip.planning.assign import Load, assign, loads_of
from ds_dip.planning.build import build_problem
from ds_dip.planning.cut import PlanningError, cut

__all__ = ["Load", "PlanningError", "assign", "build_problem", "cut", "loads_of"]
