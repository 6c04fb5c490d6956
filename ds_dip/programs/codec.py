"""Programs as one table of numbers and names, and back with every value checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.models.spec import ELEMENT_BYTES
from ds_dip.programs.compile import ProgramError
from ds_dip.programs.program import (
    RUNS,
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

_OF_STAGE: tuple[type[Load | Forward | Backward | BackwardWeight], ...] = (Load, *RUNS.values())
_OF_MESSAGE: tuple[type[PostSend | PostReceive | WaitReceive | WaitSend], ...] = (
    PostSend,
    PostReceive,
    WaitReceive,
    WaitSend,
)
_CODES = {kind: code for code, kind in enumerate((*_OF_STAGE, *_OF_MESSAGE))}
_DTYPES = {"compute", *ELEMENT_BYTES}


@dataclass(frozen=True, slots=True)
class ProgramTable:
    """All ranks' programs as they are written.

    ``stages`` are (kind, module, chunk, microbatch, sub, memory strategy), ``messages`` (id, source, target, sender,
    receiver, order, tensors) with positions in ``stages``. ``instructions`` are a rank's in order, each one number: a
    stage's position, or a message's id, times the number of kinds, plus the kind.
    """

    stages: tuple[tuple[str, str, int, int, int, str], ...]
    messages: tuple[tuple[int, int, int, int, int, int, tuple[tuple[tuple[int, ...], str], ...]], ...]
    instructions: tuple[tuple[int, ...], ...]


def encode(programs: Sequence[Program]) -> ProgramTable:
    """The table of programs: stages once, messages once, then instructions per rank."""
    stages: dict[Stage, int] = {}

    def number(stage: Stage) -> int:
        return stages.setdefault(stage, len(stages))

    def one(instruction: Instruction) -> int:
        mine = isinstance(instruction, _OF_STAGE)
        return _CODES[type(instruction)] + len(_CODES) * (number(instruction.stage) if mine else instruction.message)  # type: ignore[union-attr]  # told apart by the table

    messages = {message.id: message for program in programs for message in program.messages}
    strategies = {
        instruction.stage: instruction.strategy
        for program in programs
        for instruction in program.instructions
        if isinstance(instruction, Forward | Backward)
    }
    table = tuple(
        (m.id, number(m.source), number(m.target), m.sender, m.receiver, m.order, m.tensors)
        for _, m in sorted(messages.items())
    )
    instructions = tuple(tuple(map(one, program.instructions)) for program in programs)
    rows = tuple((s.kind, s.module, s.chunk, s.microbatch, s.sub, strategies.get(s, "none")) for s in stages)
    return ProgramTable(rows, table, instructions)


def decode(table: ProgramTable) -> tuple[Program, ...]:
    """Programs from ``encode``'s table, whose values have the types it says.

    Raises ProgramError where a value is not what ``encode`` writes; ``replay`` still has to pass.
    """
    ranks = len(table.instructions)
    for kind, _, *places, strategy in table.stages:
        if kind not in RUNS:
            raise ProgramError(f"stage kind: found {kind[:80]!r}, expected one of {', '.join(RUNS)}")
        if min(places) < 0:
            raise ProgramError(f"stage: found {places} as chunk, microbatch and sub, expected whole numbers from 0")
        if strategy not in STRATEGIES:
            raise ProgramError(f"memory strategy: found {strategy[:80]!r}, expected one of {', '.join(STRATEGIES)}")
    stages = [Stage(*row[:5]) for row in table.stages]
    strategies = [row[5] for row in table.stages]
    messages = [_message(row, stages, ranks) for row in table.messages]
    programs = []
    for rank, numbers in enumerate(table.instructions):
        mine = tuple(message for message in messages if rank in (message.sender, message.receiver))
        programs.append(Program(rank, tuple([_instruction(number, stages, strategies) for number in numbers]), mine))
    return tuple(programs)


def _message(
    row: tuple[int, int, int, int, int, int, tuple[tuple[tuple[int, ...], str], ...]], stages: list[Stage], ranks: int
) -> Message:
    number, source, target, sender, receiver, order, tensors = row
    if min(number, order) < 0 or not (0 <= source < len(stages) and 0 <= target < len(stages)):
        raise ProgramError(f"message {row[:6]}: expected numbers from 0, and source and target below {len(stages)}")
    if not (0 <= sender < ranks and 0 <= receiver < ranks):
        raise ProgramError(f"message {number}: a message names a rank outside 0 to {ranks - 1}")
    for shape, dtype in tensors:
        if dtype not in _DTYPES:
            raise ProgramError(f"message {number}: dtype {dtype[:80]!r}, expected one of {', '.join(sorted(_DTYPES))}")
        if min(shape, default=0) < 0:
            raise ProgramError(f"message {number}: tensor shape {shape}, expected whole numbers from 0")
    return Message(number, stages[source], stages[target], sender, receiver, order, tensors)


def _instruction(number: int, stages: list[Stage], strategies: list[str]) -> Instruction:
    argument, code = divmod(number, len(_CODES))
    if number < 0 or (code < len(_OF_STAGE) and argument >= len(stages)):
        raise ProgramError(f"instruction: found {number}, expected a whole number whose stage is below {len(stages)}")
    if code == _CODES[Load]:
        return Load(stages[argument])
    if code == _CODES[Forward]:
        return Forward(stages[argument], strategies[argument])
    if code == _CODES[Backward]:
        return Backward(stages[argument], strategies[argument])
    if code == _CODES[BackwardWeight]:
        return BackwardWeight(stages[argument])
    return _OF_MESSAGE[code - len(_OF_STAGE)](argument)
