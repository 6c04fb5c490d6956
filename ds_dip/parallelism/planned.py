"""What the planner's own order makes of a layout, beside what the simulation that chose it predicts."""

from __future__ import annotations

from collections.abc import Sequence

from ds_dip.data import SampleMetadata
from ds_dip.parallelism.groups import Run, tails_of
from ds_dip.parallelism.job import Job
from ds_dip.parallelism.placing import problem_of
from ds_dip.parallelism.simulation import Prediction, Simulator
from ds_dip.partition.scoring import Scheduler
from ds_dip.scheduling import BaselineError, InfeasibleError, ProblemError


def planned_and_simulated(
    job: Job, own: Prediction, samples: Sequence[SampleMetadata], scheduler: Scheduler
) -> tuple[float, float] | None:
    """Seconds of a global batch's replica with most work as ``scheduler`` orders it within memory, and as simulated.

    They differ most where memory is short: the simulation counts each microbatch in flight as the heaviest of the
    data, the planner counts its own bytes. None where ``scheduler`` finds no order.
    """
    simulator = Simulator(job, [samples])
    partition, batch = own.partition, simulator.cut(own.layout, 0)[0]
    room, tails = simulator.room(own.layout, partition), tails_of(job, own.layout, partition)
    try:
        _, _, timeline = scheduler(problem_of(job, own.layout, partition, batch, room.left, tails))
    except (BaselineError, InfeasibleError, ProblemError):
        return None
    return timeline.makespan, Run(simulator, own.layout, partition, room).group(batch).makespan
