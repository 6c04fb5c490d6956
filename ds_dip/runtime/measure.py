"""The measured timeline of a batch, gathered from all ranks of a pipeline on one clock."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from deepspeed import comm as dist

from ds_dip.planner import StepPlan
from ds_dip.planner.codec import Codec
from ds_dip.programs.program import Stage, stages_of
from ds_dip.runtime.clock import Interval
from ds_dip.runtime.exchange import gather
from ds_dip.runtime.finite import CLEAN, Note

_HOST: Codec[str] = Codec(str, "a host's name")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch really took, in seconds from its start (the first rank's request for the plan).

    ``stages`` are every rank's stages in the order they ran; ``waited`` how long the slowest rank
    waited for its plan; ``executed`` the span of the stages; ``iteration`` the whole batch until this
    rank ended it, the reduction and the optimizer step included; ``bubble`` the share of ranks x ``executed`` in which
    a rank ran no stage. ``peak_memory`` are the bytes that each rank's program took at most, by the accelerator's own
    count; empty where it has none. ``loading`` is how long each rank waited for samples, between its stages.
    """

    step: int
    stages: tuple[tuple[Interval, ...], ...]
    waited: float
    executed: float
    iteration: float
    bubble: float
    peak_memory: tuple[float, ...] = ()
    loading: tuple[float, ...] = ()


class AssignmentError(RuntimeError):
    """Replicas that do not share a global batch: some of its samples would count twice, others not at all."""


class Measurer:
    """Gathers what the ranks of a batch noted and measured, in one collective, before the optimizer's step.

    A pipeline's ranks exchange their stages' times; with several replicas each stage's ranks then exchange what was
    found, so that all decide alike.
    """

    def __init__(self, grid: Any, device: torch.device) -> None:
        self._group, self._device = grid.get_pipe_parallel_group(), device
        self._replicas = grid.get_data_parallel_group() if grid.data_parallel_size > 1 else None
        self._global = grid.stage_to_global
        self._ranks = grid.pipe_parallel_size
        self._offset = self._clock_offset()
        self._gathered: tuple[int, list[list[Stage]], list[list[float]]] = (0, [], [])
        self._peaks: tuple[float, ...] = ()
        self._loading: tuple[float, ...] = ()

    def _clock_offset(self) -> float:
        """Seconds to take off this machine's monotonic clock to get the first rank's; 0 on the same machine."""
        if len(set(gather(_HOST, socket.gethostname(), self._group))) == 1:
            return 0.0
        dist.barrier(group=self._group)
        clocks = self._all([time.monotonic()], 1, self._group)
        return float(clocks[dist.get_rank(group=self._group)][0] - clocks[0][0])

    def _all(self, numbers: Sequence[float], length: int, group: Any) -> list[list[float]]:
        mine = torch.zeros(length, dtype=torch.float64)
        mine[: len(numbers)] = torch.tensor(list(numbers), dtype=torch.float64)
        mine = mine.to(self._device)
        gathered = torch.empty(dist.get_world_size(group) * length, dtype=torch.float64, device=self._device)
        dist.all_gather_into_tensor(gathered, mine, group=group)
        return gathered.view(-1, length).tolist()

    def gather(
        self,
        plan: StepPlan,
        intervals: Sequence[Interval],
        began: float,
        planned: float,
        note: Note,
        stop: int,
        peak: float = 0.0,
        loading: float = 0.0,
        told: Sequence[float] = (),
    ) -> tuple[dict[int, Note], int, list[float]]:
        """The notes by global rank, of every rank that found something, and the largest ``stop`` of all ranks.

        The third is what replica 0 has ``told``, numbers of which all ranks give as many; with one replica none.

        Keeps the times for ``measured``.
        ``began`` is when this rank asked for its plan and ``planned`` when it had it, on its own
        monotonic clock; ``peak`` are the bytes that its program took at most, 0 where they are not counted, and
        ``loading`` is how long it waited for samples. Stages are not named on the wire: the plan's programs have their
        order.
        """
        stages = [stages_of(program) for program in plan.programs]
        times = [t - self._offset for interval in intervals for t in (interval.start, interval.end)]
        own = [*note, stop, peak, loading, began - self._offset, planned - self._offset]
        rows = self._all([*own, *times], len(own) + 2 * max(map(len, stages)), self._group)
        self._gathered = plan.step, stages, [row[len(note) + 3 :] for row in rows]
        peaks = tuple(row[len(note) + 1] for row in rows)
        self._peaks = peaks if any(peaks) else ()
        self._loading = tuple(row[len(note) + 2] for row in rows)
        notes = {self._global(stage): _note(row) for stage, row in enumerate(rows)}
        stop, heard = int(max(row[len(note)] for row in rows)), list[float]()
        if self._replicas is not None:
            worst = min(((note, rank) for rank, note in notes.items() if note != CLEAN), default=(CLEAN, 0))
            head = [*worst[0], worst[1], stop, plan.batch.assigned]
            found = self._all([*head, *told], len(head) + len(told), self._replicas)
            if any(row[len(note) + 2] != found[0][len(note) + 2] for row in found):
                raise AssignmentError(
                    f"step {plan.step}: replicas have assigned the samples of the global batch differently; make the "
                    "dataset's length and metadata the same on all nodes"
                )
            notes = {int(row[len(note)]): _note(row) for row in found if _note(row) != CLEAN}
            stop = int(max(row[len(note) + 1] for row in found))
            heard = found[0][len(head) :]
        return notes, stop, heard

    def measured(self) -> Measured:
        """The batch's timeline; it ends now."""
        step, stages, rows = self._gathered
        return replace(
            combine(step, stages, rows, time.monotonic() - self._offset), peak_memory=self._peaks, loading=self._loading
        )


def _note(row: Sequence[float]) -> Note:
    kind, backward, module, chunk, microbatch, sub = map(int, row[: len(CLEAN)])
    return (kind, backward, module, chunk, microbatch, sub)


def combine(step: int, stages: Sequence[Sequence[Stage]], rows: Sequence[Sequence[float]], ended: float) -> Measured:
    """The batch of the ranks' stages, from a row a rank: began, planned, each stage's start and end."""
    origin = min(row[0] for row in rows)
    timeline = tuple(
        tuple(Interval(stage, row[2 + 2 * n] - origin, row[3 + 2 * n] - origin) for n, stage in enumerate(of_rank))
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
        iteration=ended - origin,
        bubble=1.0 - busy / (len(rows) * span) if span else 0.0,
    )
