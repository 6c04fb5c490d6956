"""The calibration: one factor, fitted to one figure of one model; everything else is a prediction.

The figure is Megatron's iteration of VLM-S on 16 H800, the first row of the ablation; the factor multiplies the share
of its arithmetic that a device reaches, of every device alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import fsum

from ds_dip.reproduction import contenders
from ds_dip.reproduction.experiment import Comparison, Experiment, Part, Progress, Result, Results, Settings, row_of
from ds_dip.reproduction.published import ABLATION_SECONDS
from ds_dip.scheduling import retime

KEY = "calibration"
MODEL = "VLM-S"
WANTED = ABLATION_SECONDS["megatron"]
#: The factor is fitted until the seconds are this close, as a share.
CLOSE = 1e-4
_ROUNDS = 12


def fit(seconds: Callable[[float], float], wanted: float) -> float:
    """The factor at which an iteration takes the ``wanted`` seconds.

    Seconds are nearly a part that goes with 1 / factor and one that stays. Raises ValueError where no factor gives
    the wanted ones.
    """
    last = 1.0, seconds(1.0)
    factor = last[1] / wanted
    for _ in range(_ROUNDS):
        reached = seconds(factor)
        if abs(reached / wanted - 1) <= CLOSE:
            return factor
        slope = (reached - last[1]) / (1 / factor - 1 / last[0])
        inverse = 1 / factor + (wanted - reached) / slope if slope else 0.0
        if inverse <= 0:
            break
        last, factor = (factor, reached), 1 / inverse
    raise ValueError(f"no factor gives {wanted} s: {factor:.3g} gives {reached:.3g} s")


def _run(settings: Settings, progress: Progress) -> Result:
    progress("Megatron as the data sheet has it")
    case = settings.case(MODEL)
    way, found = contenders.best(case, contenders.megatron_ways(case))

    def seconds(factor: float) -> float:
        progress(f"Megatron with {factor:.3f} of it")
        own = replace(settings, factor=factor).case(MODEL)
        problems = own.problems(way.partition, found.chosen)
        return fsum(retime(problem, way.order(problem)).makespan for problem in problems) / len(problems)

    factor = fit(seconds, WANTED)
    share = factor * case.device.efficiency["flops"]
    row = row_of(MODEL, "megatron", "Megatron as the data sheet has it", found.outcome)
    return Result((row,), numbers={"factor": factor, "share": share})


def parts(quick: bool) -> tuple[Part, ...]:
    """One part; none in the quick run, whose batches are not those of a figure in seconds."""
    return () if quick else (Part(KEY, "calibration", 16, 4, _run),)


def _compare(_: Results) -> list[Comparison]:
    return []


CALIBRATE = Experiment(
    KEY,
    "Calibration",
    "The share of its arithmetic that a device reaches, such that Megatron's iteration of VLM-S on 16 H800 takes the "
    f"{WANTED} s of the paper's ablation; partition and memory strategies are those found without it. It stands for "
    "all that a data sheet leaves out, and for what the batch that is simulated differs from the paper's.",
    parts,
    _compare,
)
