"""Programs that could hang, misorder or mis-shape are refused on paper; compiled ones never are."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.programs import ProgramError, ProgramTable, compile_programs, decode, encode, replay
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
from tests.cases import Case, random_case

SHAPE = (((2, 4), "compute"),)


def forward(chunk: int, microbatch: int) -> Stage:
    return Stage("F", "language", chunk, microbatch, 0)


def backward(chunk: int, microbatch: int) -> Stage:
    return Stage("B", "language", chunk, microbatch, 0)


def message(number: int, source: Stage, target: Stage, sender: int, receiver: int, order: int) -> Message:
    return Message(number, source, target, sender, receiver, order, SHAPE)


#: Chunk 0 on rank 0, chunk 1 on rank 1, two microbatches: two activations forth, one gradient back.
F1, F2, B1 = (
    message(0, forward(0, 0), forward(1, 0), 0, 1, 0),
    message(1, forward(0, 1), forward(1, 1), 0, 1, 1),
    message(2, backward(1, 0), backward(0, 0), 1, 0, 0),
)


def pair(first: list[Any], second: list[Any], messages: tuple[Message, ...]) -> tuple[Program, Program]:
    return Program(0, tuple(first), messages), Program(1, tuple(second), messages)


def test_a_rank_that_sends_twice_before_it_receives_against_one_in_the_other_order_is_a_deadlock() -> None:
    programs = pair(
        [
            Forward(forward(0, 0)), PostSend(0), Forward(forward(0, 1)), PostSend(1),
            PostReceive(2), WaitReceive(2), Backward(backward(0, 0)), WaitSend(0), WaitSend(1),
        ],
        [
            PostReceive(0), WaitReceive(0), Forward(forward(1, 0)), Backward(backward(1, 0)), PostSend(2), WaitSend(2),
            PostReceive(1), WaitReceive(1), Forward(forward(1, 1)),
        ],
        (F1, F2, B1),
    )  # fmt: skip
    with pytest.raises(ProgramError, match="deadlock under one in-order communication queue a rank"):
        replay(programs)


def test_a_missing_receive_is_refused() -> None:
    programs = pair([Forward(forward(0, 0)), PostSend(0), WaitSend(0)], [], (F1,))
    with pytest.raises(ProgramError, match=r"rank 1: PostReceive\(message=0\) is missing"):
        replay(programs)


def test_a_message_unknown_to_its_receiver_is_refused() -> None:
    programs = Program(0, (Forward(forward(0, 0)), PostSend(0), WaitSend(0)), (F1,)), Program(1, (), ())
    with pytest.raises(ProgramError, match=r"link 0 -> 1: messages \[0\] are posted at one end only"):
        replay(programs)


def test_two_ranks_that_both_send_first_on_a_blocking_link_are_refused() -> None:
    back = message(2, forward(2, 0), forward(3, 0), 1, 0, 0)
    programs = pair(
        [Forward(forward(0, 0)), PostSend(0), PostReceive(2), WaitReceive(2), Forward(forward(3, 0)), WaitSend(0)],
        [Forward(forward(2, 0)), PostSend(2), PostReceive(0), WaitReceive(0), Forward(forward(1, 0)), WaitSend(2)],
        (F1, back),
    )
    with pytest.raises(ProgramError, match="deadlock under one in-order communication queue a rank"):
        replay(programs)


def test_waits_in_a_circle_are_refused_even_with_a_group_a_link() -> None:
    first = message(0, forward(1, 0), forward(2, 0), 0, 1, 0)
    second = message(1, forward(2, 0), forward(1, 0), 1, 0, 0)
    programs = pair(
        [PostReceive(1), WaitReceive(1), Forward(forward(1, 0)), PostSend(0), WaitSend(0)],
        [PostReceive(0), WaitReceive(0), Forward(forward(2, 0)), PostSend(1), WaitSend(1)],
        (first, second),
    )
    with pytest.raises(ProgramError, match="deadlock under one group a link"):
        replay(programs)


def test_links_whose_ends_disagree_are_refused() -> None:
    programs = pair(
        [Forward(forward(0, 0)), Forward(forward(0, 1)), PostSend(0), PostSend(1), WaitSend(0), WaitSend(1)],
        [
            PostReceive(1), PostReceive(0), WaitReceive(0), WaitReceive(1), Forward(forward(1, 0)),
            Forward(forward(1, 1)),
        ],
        (F1, F2),
    )  # fmt: skip
    with pytest.raises(ProgramError, match="sent in the order"):
        replay(programs)


def compiled(case: Case) -> tuple[Program, ...]:
    plan = case.plan(0, split=(0.0, 0.5, 1.0)[case.seed % 3])
    return compile_programs(
        plan.problem, plan.order, plan.start, plan.end, case.batches[0], case.toy.model, case.partition, link_depth=3
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ranks=st.integers(1, 5))
def test_what_is_compiled_passes_the_replay_and_survives_the_wire(seed: int, ranks: int) -> None:
    programs = compiled(random_case(seed, ranks=ranks))
    replay(programs)
    assert decode(encode(programs)) == programs


def test_weights_before_their_backward_and_stages_of_another_kind_are_refused() -> None:
    stage, later = backward(0, 0), replace(backward(0, 0), kind="W")
    begun: list[Instruction] = [Forward(forward(0, 0))]
    replay((Program(0, (*begun, Backward(stage), BackwardWeight(later)), ()),))
    for body, why in (
        ([BackwardWeight(later), Backward(stage)], "its backward has not run"),
        ([Backward(stage), BackwardWeight(stage)], "of another kind"),
        ([Backward(later)], "of another kind"),
        ([Backward(stage), BackwardWeight(later), BackwardWeight(later)], "there twice"),
    ):
        with pytest.raises(ProgramError, match=why):
            replay((Program(0, (*begun, *body), ()),))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_link_has_more_posted_sends_than_its_depth(seed: int) -> None:
    for program in compiled(random_case(seed, ranks=3)):
        links = {m.id: (m.sender, m.receiver) for m in program.messages}
        under_way: dict[tuple[int, int], int] = dict.fromkeys(links.values(), 0)
        for instruction in program.instructions:
            if isinstance(instruction, PostSend):
                under_way[links[instruction.message]] += 1
                assert under_way[links[instruction.message]] <= 3
            elif isinstance(instruction, WaitSend):
                under_way[links[instruction.message]] -= 1
        assert not any(under_way.values())


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_a_dropped_or_repeated_instruction_is_refused(seed: int, data: st.DataObject) -> None:
    programs = list(compiled(random_case(seed, ranks=2)))
    rank = data.draw(st.integers(0, 1))
    body = list(programs[rank].instructions)
    loadless = [n for n, i in enumerate(body) if not isinstance(i, Load)]
    index = data.draw(st.sampled_from(loadless))
    if data.draw(st.booleans()):
        body.insert(data.draw(st.integers(index, len(body))), body[index])
    elif isinstance(body[index], Forward | Backward | BackwardWeight):
        # Only what another stage or message needs is missed here; the schedule's own check counts stages.
        stage = body[index].stage
        needed = (
            any(stage in {m.source, m.target} for m in programs[rank].messages)
            or (stage.kind == "F" and Backward(replace(stage, kind="B")) in body)
            or (stage.kind == "B" and BackwardWeight(replace(stage, kind="W")) in body)
        )
        if not needed:
            return
        del body[index]
    else:
        del body[index]
    programs[rank] = replace(programs[rank], instructions=tuple(body))
    with pytest.raises(ProgramError):
        replay(programs)


def test_a_backward_whose_forward_ran_by_another_strategy_is_refused() -> None:
    stage = Stage("F", "language", 0, 0, 0)
    back = replace(stage, kind="B")

    def one(*instructions: Any) -> tuple[Program, ...]:
        return (Program(0, instructions, ()),)

    replay(one(Forward(stage, "full"), Backward(back, "full")))
    with pytest.raises(ProgramError, match="its forward ran by the memory strategy 'full'"):
        replay(one(Forward(stage, "full"), Backward(back, "selective")))
    with pytest.raises(ProgramError, match="the memory strategy is unknown, expected one of none, selective, full"):
        replay(one(Forward(stage, "some"), Backward(back, "some")))
    with pytest.raises(ProgramError, match="its stage is there twice"):
        replay(one(Forward(stage, "none"), Forward(stage, "full")))


WRONG = [
    (lambda t: replace(t, stages=(("X", *t.stages[0][1:]), *t.stages[1:])), "stage kind: found 'X'"),
    (lambda t: replace(t, stages=((*t.stages[0][:4], -1, "none"), *t.stages[1:])), "expected whole numbers from 0"),
    (lambda t: replace(t, stages=((*t.stages[0][:5], "some"), *t.stages[1:])), "memory strategy: found 'some'"),
    (lambda t: replace(t, messages=(with_item(t, 1, 10**6),)), "source and target below"),
    (lambda t: replace(t, messages=(with_item(t, 0, -1),)), "expected numbers from 0"),
    (lambda t: replace(t, messages=(with_item(t, 3, 2),)), "names a rank outside 0 to 1"),
    (lambda t: replace(t, messages=(with_item(t, 6, (((-1,), "compute"),)),)), "tensor shape"),
    (lambda t: replace(t, messages=(with_item(t, 6, (((1,), "int7"),)),)), "dtype 'int7'"),
    (lambda t: replace(t, instructions=((8 * 10**6 + 1,), ())), "whose stage is below"),
    (lambda t: replace(t, instructions=((-7,), ())), "expected a whole number"),
]


def with_item(table: ProgramTable, index: int, value: object) -> Any:
    row: list[object] = list(table.messages[0])
    row[index] = value
    return tuple(row)


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_wrong_table_is_refused_with_a_sentence(change: Callable[[ProgramTable], ProgramTable], message: str) -> None:
    table = encode(compiled(random_case(3, ranks=2)))
    with pytest.raises(ProgramError, match=message):
        decode(change(table))


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), number=st.integers(-1, 10**6))
def test_a_changed_instruction_is_refused_or_another_valid_program(seed: int, number: int) -> None:
    table = encode(compiled(random_case(seed % 50, ranks=2)))
    rng = random.Random(seed)
    rank = rng.randrange(2)
    body = list(table.instructions[rank])
    position = rng.randrange(len(body))
    same, body[position] = body[position] == number, number
    bodies = [*table.instructions[:rank], tuple(body), *table.instructions[rank + 1 :]]
    changed = replace(table, instructions=tuple(bodies))
    if same:
        return
    refusal = ""
    try:
        replay(decode(changed))
    except ProgramError as error:
        refusal = str(error)
    assert "\n" not in refusal
    if not refusal:  # loads concern no peer, and a plan's are checked against its model
        kinds = len(get_args(Instruction))
        assert 0 in (table.instructions[rank][position] % kinds, number % kinds)
