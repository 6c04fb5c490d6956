"""The measured timeline of a batch, gathered from all ranks of a pipeline on one clock."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed import comm as dist

from ds_dip.planner import StepPlan
from ds_dip.programs.program import Backward, Forward, Stage
from ds_dip.runtime.clock import Interval


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch really took, in seconds from its start (the first rank's request for the plan).

    ``stages`` are every rank's stages in the order they ran; ``waited`` how long the slowest rank
    waited for its plan; ``executed`` the span of the stages; ``iteration`` the whole batch, the
    reduction and the optimizer step included; ``bubble`` the share of ranks x ``executed`` in which
    a rank ran no stage.
    """

    step: int
    stages: tuple[tuple[Interval, ...], ...]
    waited: float
    executed: float
    iteration: float
    bubble: float


class Measurer:
    """Gathers intervals over a pipeline's ranks; every rank gets the whole timeline."""

    def __init__(self, grid: Any, device: torch.device) -> None:
        self._group, self._device = grid.get_pipe_parallel_group(), device
        self._ranks = grid.pipe_parallel_size
        self._offset = self._clock_offset()

    def _clock_offset(self) -> float:
        """Seconds to take off this machine's monotonic clock to get the first rank's; 0 on the same machine."""
        hosts: list[Any] = [None] * self._ranks
        # Not through DeepSpeed: its communication log ends the process at a collective of objects.
        torch.distributed.all_gather_object(hosts, socket.gethostname(), group=self._group)
        if len(set(hosts)) == 1:
            return 0.0
        dist.barrier(group=self._group)
        clocks = self._all([time.monotonic()], 1)
        return float(clocks[dist.get_rank(group=self._group)][0] - clocks[0][0])

    def _all(self, numbers: Sequence[float], length: int) -> list[list[float]]:
        mine = torch.zeros(length, dtype=torch.float64, device=self._device)
        mine[: len(numbers)] = torch.tensor(list(numbers), dtype=torch.float64)
        gathered = [torch.zeros_like(mine) for _ in range(self._ranks)]
        dist.all_gather(gathered, mine, group=self._group)
        return [row.tolist() for row in gathered]

    def gather(self, plan: StepPlan, intervals: Sequence[Interval], began: float, planned: float) -> Measured:
        """Combine the ranks' intervals of one batch.

        ``began`` is when this rank asked for its plan and ``planned`` when it had it, on its own
        monotonic clock. Stages are not named on the wire: the plan's programs have their order.
        """
        stages = [
            [i.stage for i in program.instructions if isinstance(i, Forward | Backward)] for program in plan.programs
        ]
        times = [t - self._offset for interval in intervals for t in (interval.start, interval.end)]
        head = [began - self._offset, planned - self._offset, time.monotonic() - self._offset]
        rows = self._all([*head, *times], 3 + 2 * max(map(len, stages)))
        return combine(plan.step, stages, rows)


def combine(step: int, stages: Sequence[Sequence[Stage]], rows: Sequence[Sequence[float]]) -> Measured:
    """The batch of the ranks' stages, from a row a rank: began, planned, ended, each stage's start and end."""
    origin = min(row[0] for row in rows)
    timeline = tuple(
        tuple(Interval(stage, row[3 + 2 * n] - origin, row[4 + 2 * n] - origin) for n, stage in enumerate(of_rank))
        for of_rank, row in zip(stages, rows, strict=True)
    )
    everything = [interval for rank in timeline for interval in rank]
    span = max(i.end for i in everything) - min(i.start for i in everything) if everything else 0.0
    busy = sum(i.end - i.start for i in everything)
    return Measured(
        step=step,
        stages=timeline,
        waited=max(row[1] - row[0] for row in rows),
        executed=span,
        iteration=max(row[2] for row in rows) - origin,
        bubble=1.0 - busy / (len(rows) * span) if span else 0.0,
    )
