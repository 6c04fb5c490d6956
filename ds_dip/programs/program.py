"""A Program: what one rank does for one batch, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Stage:
    """A chunk's forward (``F``), backward (``B``) or put-off weight gradients (``W``) for one (sub-)microbatch."""

    kind: str
    module: str
    chunk: int
    microbatch: int
    sub: int


@dataclass(frozen=True, slots=True)
class Message:
    """Tensors that travel from one stage to another over the link ``(sender, receiver)``.

    ``order`` is the position on that link, the same at both ends. ``tensors`` are (shape, dtype)
    with ``"compute"`` for the dtype the run trains in.
    """

    id: int
    source: Stage
    target: Stage
    sender: int
    receiver: int
    order: int
    tensors: tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Load the fields that the stage's chunk needs for its samples."""

    stage: Stage


@dataclass(frozen=True, slots=True)
class Forward:
    """Run a chunk's forward, keeping for the backward what the memory strategy says (one of ``STRATEGIES``)."""

    stage: Stage
    strategy: str = "none"


@dataclass(frozen=True, slots=True)
class Backward:
    """Run a chunk's backward, whose forward ran by the same memory strategy.

    Where its ``BackwardWeight`` follows, without the gradients that are put off.
    """

    stage: Stage
    strategy: str = "none"


@dataclass(frozen=True, slots=True)
class BackwardWeight:
    """Compute the weight gradients that a chunk's backward has put off."""

    stage: Stage


@dataclass(frozen=True, slots=True)
class PostSend:
    """Start sending a message; never blocks compute."""

    message: int


@dataclass(frozen=True, slots=True)
class PostReceive:
    """Start receiving a message into a buffer of its own."""

    message: int


@dataclass(frozen=True, slots=True)
class WaitReceive:
    """Wait until a message has arrived."""

    message: int


@dataclass(frozen=True, slots=True)
class WaitSend:
    """Wait until a message has left, so that its tensors can be freed."""

    message: int


#: What runs a stage, by the stage's kind.
RUNS: Mapping[str, type[Forward | Backward | BackwardWeight]] = {"F": Forward, "B": Backward, "W": BackwardWeight}
Instruction = Load | Forward | Backward | BackwardWeight | PostSend | PostReceive | WaitReceive | WaitSend


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's instructions and the messages it sends or receives, by id."""

    rank: int
    instructions: tuple[Instruction, ...]
    messages: tuple[Message, ...]


def stages_of(program: Program) -> list[Stage]:
    """A program's stages in running order."""
    return [i.stage for i in program.instructions if isinstance(i, Forward | Backward | BackwardWeight)]
