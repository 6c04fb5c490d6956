"""What a cost model says of a plan that ran: its stages, and the makespan of its order."""

from __future__ import annotations

from collections.abc import Sequence

from ds_dip.costs.model import CostModel
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Model
from ds_dip.planner import StepPlan
from ds_dip.planning import build_problem
from ds_dip.programs import strategies_of
from ds_dip.programs.program import Stage
from ds_dip.scheduling import Schedule, retime


def makespan(plan: StepPlan, model: Model, partition: Partition, costs: CostModel, compute: str) -> float:
    """Seconds from the first stage to the end of the last, in the order of the plan, under some costs."""
    chosen = strategies_of(plan.programs)
    problem = build_problem(plan.batch, model, partition, costs, compute=compute, chosen=chosen)
    numbers = {Stage(t.kind, t.module, t.chunk, t.microbatch, t.sub): t.id for t in problem.tasks}
    order = tuple(tuple(numbers[timed.stage] for timed in rank) for rank in plan.stages)
    return retime(problem, Schedule(order)).makespan


def spread_of(values: Sequence[float]) -> float:
    """Mean without the largest twentieth: what a rare interruption took is not what the thing takes."""
    kept = sorted(values)[: max(1, round(0.95 * len(values)))]
    return sum(kept) / len(kept)
