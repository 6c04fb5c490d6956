"""The rendezvous replay: programs run on paper before they run on ranks.

Refuses what would hang, misorder or mis-shape: unmatched messages, links whose ends disagree,
stages that run before their inputs, and cyclic waiting under two models of communication: one
group per directed link (what the runtime builds) and the strictest, a single in-order queue per
rank in which nothing overtakes.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

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


def replay(programs: Sequence[Program]) -> None:
    """Run the programs of one replica together on paper.

    Raises ProgramError, naming rank and instruction, for anything that could not run to its end.
    """
    messages = _messages(programs)
    for program in programs:
        _check_rank(program, messages)
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


def _check_rank(program: Program, messages: dict[int, Message]) -> None:
    """Posts once, waits after posts, stages once, inputs waited for, sends after their stage."""
    mine = {message.id for message in program.messages}
    inputs: dict[Stage, list[int]] = defaultdict(list)
    for message in program.messages:
        if message.receiver == program.rank:
            inputs[message.target].append(message.id)
    done: set[Stage | Instruction] = set()

    def need(condition: bool, position: int, why: str) -> None:
        if not condition:
            raise ProgramError(f"rank {program.rank}, instruction {position} ({program.instructions[position]}): {why}")

    for position, instruction in enumerate(program.instructions):
        need(instruction not in done, position, "it is there twice")
        if isinstance(instruction, Forward | Backward):
            stage = instruction.stage
            need((stage.kind == "F") == isinstance(instruction, Forward), position, "the stage is of the other kind")
            for message_id in inputs[stage]:
                need(WaitReceive(message_id) in done, position, f"it runs before message {message_id} has arrived")
            if stage.kind == "B":
                forward = Stage("F", stage.module, stage.chunk, stage.microbatch, stage.sub)
                need(forward in done, position, "its forward has not run on this rank")
            done.add(stage)
        elif not isinstance(instruction, Load):
            need(instruction.message in mine, position, "the message is not one of this rank's")
            message = messages[instruction.message]
            sends = isinstance(instruction, PostSend | WaitSend)
            need(
                program.rank == (message.sender if sends else message.receiver),
                position,
                f"rank {program.rank} is the wrong end of the link {message.sender} -> {message.receiver}",
            )
            if isinstance(instruction, PostSend):
                need(message.source in done, position, f"{message.source} has not produced the message yet")
            elif isinstance(instruction, WaitSend):
                need(PostSend(message.id) in done, position, "the send was never posted before this wait")
            elif isinstance(instruction, WaitReceive):
                need(PostReceive(message.id) in done, position, "the receive was never posted before this wait")
        done.add(instruction)
    for message in program.messages:
        needed = (
            (PostSend(message.id), WaitSend(message.id))
            if message.sender == program.rank
            else (PostReceive(message.id), WaitReceive(message.id))
        )
        for instruction in needed:
            if instruction not in done:
                raise ProgramError(
                    f"rank {program.rank}: {instruction} is missing; message {message.id} from rank "
                    f"{message.sender} to {message.receiver} would wait for it for ever"
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
