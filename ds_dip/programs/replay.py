"""The rendezvous replay: programs run on paper before they run on ranks.

Refuses what would hang, misorder or mis-shape: unmatched messages, links whose ends disagree,
stages that run before their inputs, and cyclic waiting under two models of communication: one
group per directed link (what the runtime builds) and the strictest, a single in-order queue per
rank in which nothing overtakes.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from ds_dip.costs.strategies import STRATEGIES
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


def replay(programs: Sequence[Program]) -> None:
    """Run the programs of one replica together on paper.

    Raises ProgramError, naming rank and instruction, for anything that could not run to its end.
    """
    messages = _messages(programs)
    for program in programs:
        _Rank(program).check()
    _check_links(programs, messages)
    _rendezvous(programs, messages, in_order=False)
    _rendezvous(programs, messages, in_order=True)


def _messages(programs: Sequence[Program]) -> dict[int, Message]:
    messages: dict[int, Message] = {}
    for rank, program in enumerate(programs):
        if program.rank != rank:
            raise ProgramError(f"program {rank} says it is for rank {program.rank}; give one program a rank, in order")
        for message in program.messages:
            if rank not in (message.sender, message.receiver) or message.sender == message.receiver:
                raise ProgramError(
                    f"rank {rank}: message {message.id} goes from rank {message.sender} to {message.receiver}, "
                    f"expected two different ranks, one of them {rank}"
                )
            known = messages.setdefault(message.id, message)
            if known != message:
                raise ProgramError(f"message {message.id} is described in two ways: {known} and {message}")
    return messages


class _Rank:
    """One rank's instructions, checked in order: posts once, waits after posts, stages after their inputs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.messages = {message.id: message for message in program.messages}
        self.inputs: dict[Stage, list[int]] = defaultdict(list)
        for message in program.messages:
            if message.receiver == program.rank:
                self.inputs[message.target].append(message.id)
        self.loads = {i for i in program.instructions if isinstance(i, Load)}
        self.done: set[Stage | Instruction] = set()
        self.strategies: dict[Stage, str] = {}

    def check(self) -> None:
        for position, instruction in enumerate(self.program.instructions):
            why = self._objection(instruction)
            if why:
                raise ProgramError(f"rank {self.program.rank}, instruction {position} ({instruction}): {why}")
            self.done.add(instruction)
            if isinstance(instruction, Forward | Backward | BackwardWeight):
                self.done.add(instruction.stage)
                if not isinstance(instruction, BackwardWeight):
                    self.strategies[instruction.stage] = instruction.strategy
        for message in self.program.messages:
            self._complete(message)

    def _objection(self, instruction: Instruction) -> str | None:
        if instruction in self.done:
            return "it is there twice"
        if isinstance(instruction, Load):
            return None if instruction.stage.kind == "F" else "a backward needs no fields"
        if isinstance(instruction, Forward | Backward | BackwardWeight):
            return self._stage(instruction)
        if instruction.message not in self.messages:
            return "the message is not one of this rank's"
        message, rank = self.messages[instruction.message], self.program.rank
        sends = isinstance(instruction, PostSend | WaitSend)
        if rank != (message.sender if sends else message.receiver):
            return f"rank {rank} is the wrong end of the link {message.sender} -> {message.receiver}"
        if isinstance(instruction, PostSend) and message.source not in self.done:
            return f"{message.source} has not produced the message yet"
        if isinstance(instruction, WaitSend) and PostSend(message.id) not in self.done:
            return "the send was never posted before this wait"
        if isinstance(instruction, WaitReceive) and PostReceive(message.id) not in self.done:
            return "the receive was never posted before this wait"
        return None

    def _stage(self, instruction: Forward | Backward | BackwardWeight) -> str | None:
        stage = instruction.stage
        if not isinstance(instruction, RUNS[stage.kind]):
            return "the stage is of another kind"
        if stage in self.done:
            return "its stage is there twice"
        if Load(stage) not in self.done and Load(stage) in self.loads:
            return "it runs before its fields are loaded"
        missing = [message for message in self.inputs[stage] if WaitReceive(message) not in self.done]
        if missing:
            return f"it runs before message {missing[0]} has arrived"
        if stage.kind == "B" and replace(stage, kind="F") not in self.done:
            return "its forward has not run on this rank"
        if stage.kind == "W" and replace(stage, kind="B") not in self.done:
            return "its backward has not run on this rank"
        if isinstance(instruction, BackwardWeight):
            return None
        if instruction.strategy not in STRATEGIES:
            return f"the memory strategy is unknown, expected one of {', '.join(STRATEGIES)}"
        if stage.kind == "B" and self.strategies[replace(stage, kind="F")] != instruction.strategy:
            return f"its forward ran by the memory strategy {self.strategies[replace(stage, kind='F')]!r}"
        return None

    def _complete(self, message: Message) -> None:
        sends = message.sender == self.program.rank
        needed: tuple[Instruction, Instruction] = (
            (PostSend(message.id), WaitSend(message.id))
            if sends
            else (PostReceive(message.id), WaitReceive(message.id))
        )
        for instruction in needed:
            if instruction not in self.done:
                raise ProgramError(
                    f"rank {self.program.rank}: {instruction} is missing; message {message.id} from rank "
                    f"{message.sender} to {message.receiver} would wait for it for ever"
                )
        if not sends and message.target not in self.done:
            raise ProgramError(
                f"rank {self.program.rank}: {message.target} never runs, but message {message.id} is sent to it"
            )


def _check_links(programs: Sequence[Program], messages: dict[int, Message]) -> None:
    """Both ends of a link post its messages in the same order, the one they are numbered in."""
    ends: tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], list[int]]] = (
        defaultdict(list),
        defaultdict(list),
    )
    for program in programs:
        for instruction in program.instructions:
            if isinstance(instruction, PostSend | PostReceive):
                message = messages[instruction.message]
                ends[isinstance(instruction, PostReceive)][message.sender, message.receiver].append(message.id)
    for link in sorted(ends[0].keys() | ends[1].keys()):
        sent, received = ends[0][link], ends[1][link]
        if Counter(sent) != Counter(received):
            odd = sorted(set(sent) ^ set(received))
            raise ProgramError(f"link {link[0]} -> {link[1]}: messages {odd} are posted at one end only")
        if sent != received or [messages[i].order for i in sent] != list(range(len(sent))):
            raise ProgramError(
                f"link {link[0]} -> {link[1]}: sent in the order {sent[:8]}, received in the order {received[:8]}, "
                "expected the same numbered order at both ends"
            )


def _rendezvous(programs: Sequence[Program], messages: dict[int, Message], *, in_order: bool) -> None:
    """Run all ranks until all are done or none can go on; a message passes when both ends have posted it.

    ``in_order``: a rank has one queue for all its posts, and only the head of both queues passes.
    """
    positions = [0] * len(programs)
    queues: list[deque[int]] = [deque() for _ in programs]
    posted: Counter[int] = Counter()
    passed: set[int] = set()

    def post(rank: int, message_id: int) -> None:
        posted[message_id] += 1
        if not in_order:
            if posted[message_id] == 2:
                passed.add(message_id)
            return
        queues[rank].append(message_id)
        drain = {rank}
        while drain:
            queue = queues[drain.pop()]
            while queue:
                message = messages[queue[0]]
                if any(not q or q[0] != message.id for q in (queues[message.sender], queues[message.receiver])):
                    break
                queues[message.sender].popleft()
                queues[message.receiver].popleft()
                passed.add(message.id)
                drain |= {message.sender, message.receiver}

    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while positions[rank] < len(program.instructions):
                instruction = program.instructions[positions[rank]]
                if isinstance(instruction, PostSend | PostReceive):
                    post(rank, instruction.message)
                elif isinstance(instruction, WaitSend | WaitReceive) and instruction.message not in passed:
                    break
                positions[rank] += 1
                moved = True
    stuck = [
        f"rank {program.rank} at instruction {position} ({program.instructions[position]})"
        for program, position in zip(programs, positions, strict=True)
        if position < len(program.instructions)
    ]
    if stuck:
        model = "one in-order communication queue a rank" if in_order else "one group a link"
        raise ProgramError(f"deadlock under {model}: {'; '.join(stuck[:4])} wait for each other")
