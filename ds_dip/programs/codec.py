"""Programs as plain lists for msgpack, and back with every value checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds_dip.models.spec import ELEMENT_BYTES
from ds_dip.programs.compile import ProgramError
from ds_dip.programs.program import (
    Backward,
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

_OF_STAGE: tuple[type[Load | Forward | Backward], ...] = (Load, Forward, Backward)
_OF_MESSAGE: tuple[type[PostSend | PostReceive | WaitReceive | WaitSend], ...] = (
    PostSend,
    PostReceive,
    WaitReceive,
    WaitSend,
)
_DTYPES = {"compute", *ELEMENT_BYTES}


def encode(programs: Sequence[Program]) -> list[Any]:
    """Nested lists of numbers and strings: stages once, messages once, then instructions per rank."""
    stages: dict[Stage, int] = {}

    def number(stage: Stage) -> int:
        return stages.setdefault(stage, len(stages))

    messages = {message.id: message for program in programs for message in program.messages}
    table = [
        [m.id, number(m.source), number(m.target), m.sender, m.receiver, m.order, [[list(s), d] for s, d in m.tensors]]
        for _, m in sorted(messages.items())
    ]
    bodies = [[_encode(instruction, number) for instruction in program.instructions] for program in programs]
    return [[[s.kind, s.module, s.chunk, s.microbatch, s.sub] for s in stages], table, bodies]


def _encode(instruction: Instruction, number: Any) -> list[int]:
    if isinstance(instruction, Load | Forward | Backward):
        return [_OF_STAGE.index(type(instruction)), number(instruction.stage)]
    return [len(_OF_STAGE) + _OF_MESSAGE.index(type(instruction)), instruction.message]


def decode(document: Any) -> tuple[Program, ...]:
    """Programs from ``encode``'s lists.

    Raises ProgramError where a value is not what ``encode`` writes; ``replay`` still has to pass.
    """
    rows, table, bodies = _list(document, "programs", 3)
    stages = [_stage(row) for row in _list(rows, "stages")]
    messages = [_message(row, stages) for row in _list(table, "messages")]
    programs = []
    for rank, body in enumerate(_list(bodies, "instructions")):
        instructions = tuple(_instruction(row, stages) for row in _list(body, f"instructions of rank {rank}"))
        mine = tuple(message for message in messages if rank in (message.sender, message.receiver))
        programs.append(Program(rank, instructions, mine))
    if any(not 0 <= end < len(programs) for m in messages for end in (m.sender, m.receiver)):
        raise ProgramError(f"a message names a rank outside 0 to {len(programs) - 1}")
    return tuple(programs)


def _list(value: Any, name: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        wanted = "a list" if length is None else f"a list of {length}"
        raise ProgramError(f"{name}: found {str(value)[:80]!r}, expected {wanted}")
    return value


def _whole(value: Any, name: str, below: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (below is not None and value >= below):
        limit = "" if below is None else f" below {below}"
        raise ProgramError(f"{name}: found {str(value)[:80]!r}, expected a whole number from 0{limit}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ProgramError(f"{name}: found {str(value)[:80]!r}, expected a string")
    return value


def _stage(row: Any) -> Stage:
    kind, module, *numbers = _list(row, "stage", 5)
    if kind not in ("F", "B"):
        raise ProgramError(f"stage kind: found {str(kind)[:80]!r}, expected 'F' or 'B'")
    chunk, microbatch, sub = (_whole(n, name) for n, name in zip(numbers, ("chunk", "microbatch", "sub"), strict=True))
    return Stage(kind, _text(module, "stage module"), chunk, microbatch, sub)


def _message(row: Any, stages: list[Stage]) -> Message:
    *numbers, tensors = _list(row, "message", 7)
    names = ("message id", "message source", "message target", "message sender", "message receiver", "message order")
    bounds = (None, len(stages), len(stages), None, None, None)
    number, source, target, sender, receiver, order = (
        _whole(n, name, below) for n, name, below in zip(numbers, names, bounds, strict=True)
    )
    specs = []
    for pair in _list(tensors, "message tensors"):
        shape, dtype = _list(pair, "message tensor", 2)
        if dtype not in _DTYPES:
            known = ", ".join(sorted(_DTYPES))
            raise ProgramError(f"message {number}: dtype {str(dtype)[:80]!r}, expected one of {known}")
        specs.append((tuple(_whole(n, "tensor dimension") for n in _list(shape, "tensor shape")), dtype))
    return Message(number, stages[source], stages[target], sender, receiver, order, tuple(specs))


def _instruction(row: Any, stages: list[Stage]) -> Instruction:
    code, argument = _list(row, "instruction", 2)
    code = _whole(code, "instruction code", len(_OF_STAGE) + len(_OF_MESSAGE))
    if code < len(_OF_STAGE):
        return _OF_STAGE[code](stages[_whole(argument, "instruction stage", len(stages))])
    return _OF_MESSAGE[code - len(_OF_STAGE)](_whole(argument, "instruction message"))
