"""Schedule -> Programs: communication is placed where the simulated timeline has it (DIP, section on compilation).

Every post takes its place from one global order of events, the simulated starts and ends of
stages. Both ends of a link, and a rank's posts over all its links, follow that order; a wait
depends only on earlier events. Hence no program made here can deadlock, not even where a rank has
a single in-order communication queue; ``replay`` checks it independently.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Model, TensorSpec, fields_of
from ds_dip.planning.batch import Batch
from ds_dip.programs.program import (
    Backward,
    BackwardWeight,
    Forward,
    Instruction,
    Load,
    Message,
    PostReceive,
    PostSend,
    Program,
    Stage,
    WaitReceive,
    WaitSend,
)
from ds_dip.scheduling.problem import Problem, Task


class ProgramError(ValueError):
    """Programs that must not run; the message says on which rank, at which instruction and why."""


def stage_of(task: Task) -> Stage:
    """The stage that a task of a problem stands for."""
    return Stage(task.kind, task.module, task.chunk, task.microbatch, task.sub)


def boundary(model: Model, chunk: Chunk) -> tuple[TensorSpec, ...]:
    """The tensors that a chunk hands on: the outputs of its last layer."""
    return model.module(chunk.module).layers[chunk.stop - 1].output


def compile_programs(
    problem: Problem,
    order: Sequence[Sequence[int]],
    start: Sequence[float],
    end: Sequence[float],
    batch: Batch,
    model: Model,
    partition: Partition,
    *,
    link_depth: int = 4,
    strategies: Mapping[int, str] | None = None,
) -> tuple[Program, ...]:
    """One Program a rank for a scheduled batch.

    ``order`` are task ids per rank; ``start`` and ``end`` are seconds, indexed by task id (ids are
    dense). ``link_depth`` bounds the messages of a link that are posted ahead: a send waits for
    the one ``link_depth`` before it, and a receive is posted early only within it. ``strategies`` are
    memory strategies by task id, "none" where it says nothing.
    Raises ProgramError for a cross-rank edge that carries no data.
    """
    return _Compiler(problem, order, start, end, batch, model, partition, link_depth, strategies or {}).run()


class _Compiler:
    def __init__(
        self,
        problem: Problem,
        order: Sequence[Sequence[int]],
        start: Sequence[float],
        end: Sequence[float],
        batch: Batch,
        model: Model,
        partition: Partition,
        link_depth: int,
        strategies: Mapping[int, str],
    ) -> None:
        self.strategies = strategies
        self.tasks = {task.id: task for task in problem.tasks}
        self.order, self.start, self.end = order, start, end
        self.batch, self.model, self.depth = batch, model, link_depth
        self.chunks = {(chunk.module, chunk.index): chunk for chunk in partition.chunks}
        self.fields = {
            key: fields_of(model.module(chunk.module).layers[chunk.start : chunk.stop])
            for key, chunk in self.chunks.items()
        }
        self.successors: dict[int, list[int]] = defaultdict(list)
        for before, after, _ in problem.edges:
            self.successors[before].append(after)
        self.instructions: list[list[Instruction]] = [[] for _ in range(problem.ranks)]
        self.links: dict[tuple[int, int], list[Message]] = defaultdict(list)
        self.messages: list[Message] = []
        self.incoming: dict[int, list[Message]] = defaultdict(list)
        self.waiting: dict[tuple[int, int], int] = defaultdict(int)

    def run(self) -> tuple[Program, ...]:
        for task_id, starts in self._events():
            if starts:
                self._begin(self.tasks[task_id])
            else:
                self._finish(self.tasks[task_id])
        for link, messages in self.links.items():
            self.instructions[link[0]] += [WaitSend(message.id) for message in messages[-self.depth :]]
        return tuple(
            Program(rank, tuple(body), tuple(m for m in self.messages if rank in (m.sender, m.receiver)))
            for rank, body in enumerate(self.instructions)
        )

    def _events(self) -> list[tuple[int, bool]]:
        """(task id, is it a start) of every event, by time; at equal times as precedence demands, then ends first."""
        missing: dict[tuple[int, bool], int] = defaultdict(int)
        follows: dict[tuple[int, bool], list[tuple[int, bool]]] = defaultdict(list)
        for task_id in self.tasks:
            follows[task_id, True].append((task_id, False))
            missing[task_id, False] += 1
            for after in self.successors[task_id]:
                follows[task_id, False].append((after, True))
                missing[after, True] += 1
        for tasks in self.order:
            for before, after in pairwise(tasks):
                follows[before, False].append((after, True))
                missing[after, True] += 1

        def key(event: tuple[int, bool]) -> tuple[float, bool, Stage, int]:
            task_id, starts = event
            return (self.start if starts else self.end)[task_id], starts, stage_of(self.tasks[task_id]), task_id

        heap = [(key((task_id, True)), (task_id, True)) for task_id in self.tasks if not missing[task_id, True]]
        heapq.heapify(heap)
        events = []
        while heap:
            _, event = heapq.heappop(heap)
            events.append(event)
            for following in follows[event]:
                missing[following] -= 1
                if not missing[following]:
                    heapq.heappush(heap, (key(following), following))
        if len(events) != 2 * len(self.tasks):
            raise ProgramError(
                f"the schedule's order contradicts the problem's edges: {len(self.tasks) - len(events) // 2} of "
                f"{len(self.tasks)} stages can never start; check the schedule before compiling it"
            )
        return events

    def _begin(self, task: Task) -> None:
        body, stage = self.instructions[task.rank], stage_of(task)
        if task.kind == "F" and self.fields[task.module, task.chunk]:
            body.append(Load(stage))
        for message in self.incoming[task.id]:
            body.append(WaitReceive(message.id))
            self.waiting[message.sender, message.receiver] -= 1
        strategy = self.strategies.get(task.id, "none")
        if task.kind == "F":
            body.append(Forward(stage, strategy))
        else:
            body.append(Backward(stage, strategy) if task.kind == "B" else BackwardWeight(stage))

    def _finish(self, task: Task) -> None:
        targets = [self.tasks[after] for after in self.successors[task.id]]
        for target in sorted(targets, key=stage_of):
            if target.rank != task.rank:
                self._send(task, target)

    def _send(self, source: Task, target: Task) -> None:
        link = self.links[source.rank, target.rank]
        message = Message(
            len(self.messages),
            stage_of(source),
            stage_of(target),
            source.rank,
            target.rank,
            len(link),
            self._tensors(source, target),
        )
        if len(link) >= self.depth:
            self.instructions[source.rank].append(WaitSend(link[-self.depth].id))
        link.append(message)
        self.messages.append(message)
        self.incoming[target.id].append(message)
        self.instructions[source.rank].append(PostSend(message.id))
        self._receive(message)

    def _receive(self, message: Message) -> None:
        """Post a receive as early as the global order and the link's depth allow."""
        body, link = self.instructions[message.receiver], (message.sender, message.receiver)
        ahead, position = self.waiting[link], len(body)
        while position:
            earlier = body[position - 1]
            if isinstance(earlier, PostSend | PostReceive):
                break
            if isinstance(earlier, WaitReceive) and self._link(earlier.message) == link:
                if ahead + 1 >= self.depth:
                    break
                ahead += 1
            position -= 1
        body.insert(position, PostReceive(message.id))
        self.waiting[link] += 1

    def _link(self, message: int) -> tuple[int, int]:
        return self.messages[message].sender, self.messages[message].receiver

    def _tensors(self, source: Task, target: Task) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shapes and dtypes: the outputs of the producing chunk, or gradients of those that have one."""
        if source.kind != target.kind or source.kind not in ("F", "B"):
            raise ProgramError(
                f"edge from {stage_of(source)} on rank {source.rank} to {stage_of(target)} on rank {target.rank} "
                "carries no data; only forwards feed forwards and backwards feed backwards across ranks"
            )
        producer = source if source.kind == "F" else target
        specs = boundary(self.model, self.chunks[producer.module, producer.chunk])
        sizes = self.batch.microbatches[producer.microbatch].sub_sizes(producer.module, producer.sub)
        return tuple((spec.shape(sizes), spec.dtype) for spec in specs if source.kind == "F" or spec.differentiable)
