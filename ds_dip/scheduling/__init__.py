"""Problem -> Schedule with a bound: interleaving, search, memory strategies, baselines, exact proofs.

It knows nothing of models or torch, so it serves other trainers too.
"""

from ds_dip.scheduling.baselines import (
    BASELINES,
    coarse_optimus,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    static_plan,
    zb_h1,
)
from ds_dip.scheduling.bounds import lower_bound
from ds_dip.scheduling.carrying import carry_over
from ds_dip.scheduling.plan import Plan
from ds_dip.scheduling.problem import Choice, InfeasibleError, Pair, Problem, ProblemError, ScheduleError, Task
from ds_dip.scheduling.result import Result
from ds_dip.scheduling.schedule import Schedule, Timeline
from ds_dip.scheduling.solving import solve, warm
from ds_dip.scheduling.static import BaselineError
from ds_dip.scheduling.timing import interleave, retime, retime_many
from ds_dip.scheduling.verify import verify

__all__ = [
    "BASELINES",
    "BaselineError",
    "Choice",
    "InfeasibleError",
    "Pair",
    "Plan",
    "Problem",
    "ProblemError",
    "Result",
    "Schedule",
    "ScheduleError",
    "Task",
    "Timeline",
    "carry_over",
    "coarse_optimus",
    "gpipe",
    "interleave",
    "interleaved_1f1b",
    "lower_bound",
    "one_f_one_b",
    "retime",
    "retime_many",
    "solve",
    "static_plan",
    "verify",
    "warm",
    "zb_h1",
]
