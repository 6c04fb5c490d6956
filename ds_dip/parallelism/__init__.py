"""How many GPUs do what: placement, tensor, pipeline and data parallelism of each module (DFLOP, offline optimizer).

A layout is scored by scheduled sample batches, the slowest replica counting, or by the paper's closed form.
"""

from ds_dip.parallelism.job import Cluster, Job
from ds_dip.parallelism.layout import CONTIGUOUS, DISAGGREGATED, PLACEMENTS, SEPARATED, Layout, Mesh
from ds_dip.parallelism.optimizer import Found, optimize
from ds_dip.parallelism.simulation import Prediction, Simulator

__all__ = [
    "CONTIGUOUS",
    "DISAGGREGATED",
    "PLACEMENTS",
    "SEPARATED",
    "Cluster",
    "Found",
    "Job",
    "Layout",
    "Mesh",
    "Prediction",
    "Simulator",
    "optimize",
]
