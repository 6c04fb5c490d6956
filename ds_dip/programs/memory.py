"""The peak memory of Programs: what stages keep, and what lies between them on its way to another.

A rank runs its instructions one after another, so its memory follows from its own program alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ds_dip.costs.strategies import forward_bytes
from ds_dip.models.partition import Chunk, Partition
from ds_dip.models.spec import Model, Sizes
from ds_dip.planning.batch import Batch
from ds_dip.programs.compile import boundary, stage_of
from ds_dip.programs.program import Backward, BackwardWeight, Forward, PostReceive, Program, Stage, WaitSend
from ds_dip.scheduling.problem import Problem


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes held from a moment on: the start of a rank's ``stage`` (its position in the program), or its end."""

    stage: int
    start: bool
    bytes: float


def strategies_of(programs: Sequence[Program]) -> dict[tuple[str, int, int, int], str]:
    """The memory strategy of every stage with a backward, by module, chunk, microbatch and sub-microbatch."""
    return {
        (i.stage.module, i.stage.chunk, i.stage.microbatch, i.stage.sub): i.strategy
        for program in programs
        for i in program.instructions
        if isinstance(i, Backward)
    }


def memory(
    programs: Sequence[Program],
    problem: Problem,
    choices: Sequence[int],
    batch: Batch,
    model: Model,
    partition: Partition,
    compute: str,
) -> tuple[tuple[Held, ...], ...]:
    """Bytes of activations, gradients of activations and messages that each rank holds, from first to last.

    ``problem`` and the ``choices`` of its pairs tell what stages keep, and the workspace of backwards. A stage's
    outputs, or the gradients that it hands back, are held until all who take them on this rank have run and
    their sends have ended; a message's buffer from the post of its receive on, until the stage that takes it keeps it
    (a forward) or has ended (a backward).
    """
    tasks = {task.id: task for task in problem.tasks}
    held = {stage_of(task): (task.acquire, task.release) for task in problem.tasks if task.kind != "W"}
    for pair, number in zip(problem.pairs, choices, strict=True):
        choice = pair.choices[number]
        held[stage_of(tasks[pair.forward])] = choice.memory, 0.0
        held[stage_of(tasks[pair.backward])] = choice.backward_acquire, choice.memory + choice.backward_acquire
    edges = [
        (tasks[before], tasks[after]) for before, after, _ in problem.edges if tasks[before].kind == tasks[after].kind
    ]
    takers: dict[Stage, list[Stage]] = defaultdict(list)
    local: dict[Stage, list[Stage]] = defaultdict(list)
    for source, target in edges:
        takers[stage_of(source)].append(stage_of(target))
        if source.rank == target.rank:
            local[stage_of(target)].append(stage_of(source))
    chunks = {(chunk.module, chunk.index): chunk for chunk in partition.chunks}

    @cache
    def outputs(chunk: Chunk, sizes: Sizes, gradient: bool) -> float:
        specs = boundary(model, chunk)
        return float(sum(spec.bytes(sizes, compute) for spec in specs if spec.differentiable or not gradient))

    @cache
    def needed(chunk: Chunk, sizes: Sizes, strategy: str) -> float:
        return forward_bytes(model, chunk.module, chunk.start, chunk.stop, sizes, strategy=strategy, compute=compute)

    def of(stage: Stage) -> tuple[Chunk, Sizes]:
        sizes = batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
        return chunks[stage.module, stage.chunk], sizes

    def given(stage: Stage) -> float:
        """Bytes of a forward's outputs, or of the gradients of them that a backward gets."""
        return outputs(*of(stage), stage.kind == "B")

    def passing(stage: Stage, strategy: str) -> float:
        """Bytes that a forward needs while it runs, beside what it keeps."""
        return needed(*of(stage), strategy)

    return tuple(tuple(_Rank(program, held, takers, local, given, passing).walk()) for program in programs)


def peaks(held: Sequence[Sequence[Held]]) -> tuple[float, ...]:
    """The most bytes that each rank holds at once."""
    return tuple(max((moment.bytes for moment in rank), default=0.0) for rank in held)


class _Rank:
    """A walk through one rank's program."""

    def __init__(
        self,
        program: Program,
        held: Mapping[Stage, tuple[float, float]],
        takers: Mapping[Stage, Sequence[Stage]],
        local: Mapping[Stage, Sequence[Stage]],
        given: Callable[[Stage], float],
        passing: Callable[[Stage, str], float],
    ) -> None:
        self.program, self.held, self.takers, self.local = program, held, takers, local
        self.given, self.passing = given, passing
        self.now, self.stages = 0.0, 0
        self.moments: list[Held] = []
        self.later = {i.stage for i in program.instructions if isinstance(i, BackwardWeight)}
        #: Stages of the other ends that have still to take what a stage gave.
        self.waiting: dict[Stage, int] = {}

    def walk(self) -> list[Held]:
        """Every change of what is held."""
        messages = {message.id: message for message in self.program.messages}
        arrived: dict[Stage, float] = defaultdict(float)
        for instruction in self.program.instructions:
            if isinstance(instruction, PostReceive):
                message = messages[instruction.message]
                bytes = self.given(message.source if message.source.kind == "F" else message.target)
                arrived[message.target] += bytes
                self._change(bytes)
            elif isinstance(instruction, WaitSend):
                self._taken(messages[instruction.message].source, messages[instruction.message].target)
            elif isinstance(instruction, Forward):
                self._forward(instruction, arrived.pop(instruction.stage, 0.0))
            elif isinstance(instruction, Backward):
                self._backward(instruction.stage, arrived.pop(instruction.stage, 0.0))
            elif isinstance(instruction, BackwardWeight):
                self._change(0.0, start=True)
                self.stages += 1
                self._change(-self.held[replace(instruction.stage, kind="F")][0])
        return self.moments

    def _forward(self, instruction: Forward, arrived: float) -> None:
        stage = instruction.stage
        acquire, release = self.held[stage]
        # Of a forward without a backward, it is what it acquires.
        passing = 0.0 if release else self.passing(stage, instruction.strategy)
        # What it takes is among what it keeps.
        self.now -= arrived
        for source in self.local.get(stage, ()):
            self._taken(source, stage, quiet=True)
        self._change(acquire + passing, start=True)
        self.stages += 1
        self.now -= release + passing
        takers = self.takers.get(stage, ())
        self.waiting[stage] = len(takers)
        self._change(self.given(stage) if takers else 0.0)

    def _backward(self, stage: Stage, arrived: float) -> None:
        acquire, _ = self.held[stage]
        self._change(acquire, start=True)
        self.stages += 1
        # What its forward keeps stays until the gradients of weights that are put off.
        kept = 0.0 if replace(stage, kind="W") in self.later else self.held[replace(stage, kind="F")][0]
        self.now -= kept + acquire + arrived
        for source in self.local.get(stage, ()):
            self._taken(source, stage, quiet=True)
        self._change(sum(self.given(target) for target in self.takers.get(stage, ())))

    def _taken(self, source: Stage, target: Stage, *, quiet: bool = False) -> None:
        """A forward's outputs are one tensor for all who take them, a backward's gradients one for each."""
        freed = 0.0
        if source.kind == "B":
            freed = self.given(target)
        else:
            self.waiting[source] -= 1
            if not self.waiting[source]:
                freed = self.given(source)
        if quiet:
            self.now -= freed
        else:
            self._change(-freed)

    def _change(self, bytes: float, *, start: bool = False) -> None:
        self.now += bytes
        self.moments.append(Held(self.stages if start else max(0, self.stages - 1), start or not self.stages, self.now))
