"""The memory of programs on paper: it begins and ends with nothing, and holds what stages keep and messages carry."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.planner import Planner
from ds_dip.planning import build_problem
from ds_dip.programs import memory, peaks, strategies_of
from ds_dip.programs.program import PostReceive, PostSend, Program, WaitReceive, WaitSend
from tests.planner_cases import FEW, MODEL, settings


@FEW
@given(st.integers(0, 100), st.sampled_from(STRATEGIES), st.booleans())
def test_nothing_is_left_and_a_plans_peak_is_its_walks(step: int, strategy: str, forward_only: bool) -> None:
    planner = Planner(settings(strategies=(strategy,)))
    samples = [planner.dataset.metadata(index) for index in range(step, step + 6)]
    plan = planner.evaluation(step, samples) if forward_only else planner.plan(step)
    problem = build_problem(
        plan.batch, MODEL, planner.settings.partition, planner.costs, forward_only=forward_only,
        chosen=strategies_of(plan.programs),
    )  # fmt: skip
    held = memory(plan.programs, problem, (), plan.batch, MODEL, planner.settings.partition, "float32")
    assert peaks(held) == plan.peak_memory
    for rank in held:
        assert rank[-1].bytes == 0
        assert all(moment.bytes >= 0 for moment in rank)
        places = [(moment.stage, not moment.start) for moment in rank]
        assert places == sorted(places)


def test_a_message_is_held_at_both_ends() -> None:
    planner = Planner(settings())
    plan = planner.plan(0)
    partition = planner.settings.partition
    problem = build_problem(plan.batch, MODEL, partition, planner.costs)
    (message, *_) = plan.programs[0].messages
    sizes = plan.batch.microbatches[message.source.microbatch].sub_sizes(message.source.module, message.source.sub)
    carried = sum(spec.bytes(sizes, "float32") for spec in MODEL.module(message.source.module).layers[-1].output)
    send = [i for i in plan.programs[message.sender].instructions if getattr(i, "stage", None) == message.source]
    ends = (
        Program(0, (*send, PostSend(message.id), WaitSend(message.id)), (message,)),
        Program(1, (PostReceive(message.id), WaitReceive(message.id)), (message,)),
    )
    still = tuple(replace(task, acquire=0.0, release=0.0) for task in problem.tasks)
    sender, receiver = memory(ends, replace(problem, tasks=still), (), plan.batch, MODEL, partition, "float32")
    assert [moment.bytes for moment in receiver] == [carried]
    assert carried in [moment.bytes for moment in sender]
