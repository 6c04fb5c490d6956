"""Adopted costs: one rule for all ranks, from a step on that nobody has planned, and alike in every replica."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Self

from ds_dip.costs.corrections import CorrectedCosts, Corrections, Fit, Measurement
from ds_dip.costs.model import module_seconds
from ds_dip.planner import LeaderSource, Planner, PlannerClient, StepPlan
from ds_dip.planner.adopted import ADOPTED, MOVED, Adopted, Adoption, Version
from ds_dip.planner.messages import Made, read_message
from ds_dip.planner.record import FORMAT, VERSION, decode_plan, encode_plan
from ds_dip.planner.service import Service
from ds_dip.planner.verification import OutdatedError, Verifier
from ds_dip.planner.wire import Wire
from ds_dip.planning.cut import sizes_of
from ds_dip.reporting.replay import plan_again
from tests.planner_cases import FEW, MODEL, settings

PATIENCE = 60.0
KINDS = [(module.name, kind) for module in MODEL.modules for kind in "FB"]
FACTORS = st.lists(st.floats(0.01, 100), min_size=len(KINDS), max_size=len(KINDS))
PLAN = Planner(settings()).plan(0)


def fits_of(factors: list[float]) -> tuple[Fit, ...]:
    return tuple(Fit(*kind, factor, 0.0) for kind, factor in zip(KINDS, factors, strict=True))


#: A vision encoder that takes far longer than predicted: another assignment than by static costs.
SLOW = fits_of([60.0, 60.0, 1.0, 1.0])


def planned(step: int, fits: tuple[Fit, ...]) -> StepPlan:
    """All that is asked of a plan here."""
    return replace(PLAN, step=step, corrections=Corrections(fits=fits))


def adoption(**options: Any) -> Adoption:
    return Adoption(MODEL, 2, **options)


def after(rule: Adoption, step: int, fits: tuple[Fit, ...]) -> bool:
    """The end of a step in which replica 0 had these lines."""
    return rule.heard(step, rule.told(planned(step, fits)))


def test_costs_are_compared_after_few_steps_and_then_ever_so_often() -> None:
    rule = adoption()
    assert [step + 1 for step in range(320) if rule.told(planned(step, SLOW))] == [16, 48, 112, 176, 240, 304]
    rule = adoption(first=1)
    assert [step + 1 for step in range(16) if rule.told(planned(step, SLOW))] == [1, 3, 7, 11, 15]


@given(st.lists(st.tuples(st.booleans(), FACTORS), max_size=8), st.integers(1, 1000))
def test_every_rank_holds_the_same_and_no_batch_that_may_be_made_changes(
    told: list[tuple[bool, list[float]]], ahead: int
) -> None:
    first, other = Adoption(MODEL, ahead, first=1), Adoption(MODEL, ahead, first=1)
    whole: list[Version] = []
    for step, (fitted, factors) in enumerate(told):
        before, numbers = first.adopted, first.told(planned(step, fits_of(factors) if fitted else ()))
        assert len(other.told(planned(step, SLOW))) == len(numbers), "a row of the exchange is as long on all ranks"
        assert first.heard(step, numbers) == other.heard(step, numbers)
        assert first.adopted == other.adopted
        assert all(first.adopted.at(own) == before.at(own) for own in range(step, step + ahead + 2))
        whole += [version for version in first.adopted.versions if version not in whole]
        every = Adopted(tuple(whole))
        assert all(first.adopted.at(own) == every.at(own) for own in range(step, step + 2 * ahead + 4))
    assert ADOPTED.decode(ADOPTED.encode(first.adopted)) == first.adopted


@given(FACTORS, st.floats(0.01, 100), st.integers(0, 3), st.floats(MOVED * 1.01, 100))
def test_only_what_moves_against_the_rest_is_adopted(
    factors: list[float], scale: float, which: int, more: float
) -> None:
    rule = adoption(first=1)
    after(rule, 0, fits_of(factors))
    assert not after(rule, 2, fits_of([factor * scale for factor in factors]))
    moved = fits_of([factor * (more if n == which else 1.0) for n, factor in enumerate(factors)])
    assert after(rule, 6, moved) == (rule.adopted.newest == moved)
    assert rule.adopted.newest == moved


def test_a_line_that_tells_nothing_takes_what_is_known_of_the_others() -> None:
    known = (Fit("vision", "F", 4.0, 0.1), Fit("language", "F", 0.0, 0.5), Fit("", "iteration", 9.0, 9.0))
    rule = adoption(first=1)
    assert not after(rule, 0, ()), "nothing was measured"
    assert not after(rule, 0, known), "all are taken to be as far off as the one"
    assert after(rule, 0, (*known, Fit("language", "B", 2.0, 0.0)))
    assert rule.adopted.newest == (
        known[0],
        Fit("vision", "B", 4.0, 0.0),
        Fit("language", "F", 2.0, 0.0),
        Fit("language", "B", 2.0, 0.0),
    )


def test_where_costs_are_not_followed_they_stay_static() -> None:
    rule = adoption(active=False, first=1)
    assert not any(after(rule, step, SLOW) for step in range(20))
    rule.restore(Adopted((Version(0, SLOW),)))
    assert rule.adopted == Adopted()


@FEW
@given(st.integers(0, 60), st.integers(2, 4), FACTORS, st.lists(st.floats(0.01, 100), min_size=4, max_size=4))
def test_replicas_with_other_corrections_assign_alike(
    since: int, replicas: int, factors: list[float], own: list[float]
) -> None:
    planners = [Planner(settings(replicas=replicas, replica=replica)) for replica in range(replicas)]
    for replica, planner in enumerate(planners):
        planner.corrections = Corrections().updated([Measurement("vision", "F", 1.0, own[replica])] * 4)
    static = [planner.batches.of(max(0, since - 1)) for planner in planners]
    for planner in planners:
        planner.batches.adopt(Adopted((Version(since, fits_of(factors)),)))
    for step in (since, since + 5):
        plans = [planner.plan(step) for planner in planners]
        fallbacks = [planner.fallback(step, "late") for planner in planners]
        assert len({plan.batch.assigned for plan in (*plans, *fallbacks)}) == 1
        assert {plan.batch.adopted for plan in (*plans, *fallbacks)} == {fits_of(factors)}
        held = sorted(s.id for plan in plans for microbatch in plan.batch.microbatches for s in microbatch.samples)
        assert held == sorted(sample.id for sample in planners[0].batches.samples(step))
        for planner, plan in zip(planners, plans, strict=True):
            Verifier(planner).check(plan)
    if since:
        assert [planner.batches.of(since - 1) for planner in planners] == static
    samples = planners[0].batches.samples(1)
    assert len({planner.evaluation(0, samples).batch.assigned for planner in planners}) == 1


def test_replicas_are_even_by_what_is_adopted() -> None:
    own = [Planner(settings(batch_size=16, replicas=2, replica=replica)) for replica in (0, 1)]
    true = CorrectedCosts(own[0].costs, Corrections(fits=SLOW), {})

    def uneven(step: int) -> float:
        each = [
            sum(
                sum(module_seconds(MODEL, true, sizes_of([sample], MODEL), busy=True))
                for microbatch in planner.batches.of(step).microbatches
                for sample in microbatch.samples
            )
            for planner in own
        ]
        return max(each) / sum(each) * 2

    before = [uneven(step) for step in range(12)]
    for planner in own:
        planner.batches.adopt(Adopted((Version(0, SLOW),)))
    found = [uneven(step) for step in range(12)]
    assert sum(found) < sum(before)
    assert max(found) < max(before)


def test_samples_alone_are_assigned_with_what_a_stage_costs_anyway() -> None:
    """One sample a microbatch pays a line's offset once a chunk, and those without images none of vision's."""
    planner = Planner(settings(replicas=2, microbatches=4))
    offsets = tuple(replace(fit, factor=1.0, offset=100.0 * (fit.module == "vision")) for fit in SLOW)
    planner.batches.adopt(Adopted((Version(0, offsets),)))
    for step in range(6):
        samples = planner.batches.samples(step)
        pictured = sum(bool(sample.modules["vision"]) for sample in samples)
        held = [s for microbatch in planner.batches.of(step).microbatches for s in microbatch.samples]
        assert abs(2 * sum(bool(sample.modules["vision"]) for sample in held) - pictured) <= 1


def test_a_plan_by_costs_that_do_not_hold_is_outdated_and_not_refused() -> None:
    planner = Planner(settings(replicas=2))
    plan = planner.plan(7)
    planner.batches.adopt(Adopted((Version(7, SLOW),)))
    with pytest.raises(OutdatedError):
        Verifier(planner).check(plan)
    Verifier(planner).check(planner.plan(7))


class Process:
    """A planner's service, of which every turn is taken by hand."""

    def __init__(self, first: int) -> None:
        self.wire, self._theirs = map(Wire, socket.socketpair())
        self.planner = Planner(settings(replicas=2))
        self.service = Service(self._theirs, self.planner, first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()
        self._theirs.close()

    def plans(self, *messages: list[Any]) -> list[StepPlan]:
        """What it plans until it waits, after these messages."""
        for message in messages:
            self.wire.send(message)
            self.service.turn()
        made = []
        while self.service._step <= self.service._wanted + self.planner.settings.ahead:
            self.service.turn()
            message = self.wire.receive(PATIENCE)
            assert message is not None
            said = read_message(message, lambda plan: None)
            assert isinstance(said, Made)
            made.append(said.plan)
        return made


@pytest.mark.parametrize("again", [False, True], ids=["one that runs", "one that started anew in this step"])
def test_no_planner_has_made_a_batch_whose_costs_change(again: bool) -> None:
    step = 15
    rule = adoption()
    assert after(rule, step, SLOW)
    with Process(step + again) as process:
        made = process.plans() if again else process.plans(["wanted", step, False])
        assert max(plan.step for plan in made) < rule.adopted.versions[0].since
        assert process.plans(["adopted", ADOPTED.encode(rule.adopted)]) == []
        later = process.plans(["wanted", step + 3, False])
        assert [plan.step for plan in later if plan.batch.adopted] == [step + 4, step + 5]


def test_a_planner_that_is_set_back_plans_again_what_is_assigned_otherwise() -> None:
    with Process(0) as process:
        assert [plan.step for plan in process.plans()] == [0, 1, 2]
        again = process.plans(["adopted", ADOPTED.encode(Adopted((Version(1, SLOW),)))])
    assert [(plan.step, plan.batch.adopted) for plan in again] == [(1, SLOW), (2, SLOW)]


@pytest.fixture
def client() -> Iterator[PlannerClient]:
    client = PlannerClient(settings(replicas=2))
    yield client
    client.close()


def test_adopted_costs_reach_the_planner_and_its_successor(client: PlannerClient) -> None:
    planner, adopted = Planner(settings(replicas=2)), Adopted((Version(5, SLOW), Version(8, fits_of([1, 1, 60, 60]))))
    planner.batches.adopt(adopted)
    assert client.take(0, PATIENCE).plan == planner.plan(0)
    assert client.ready(PATIENCE, plans=2)
    client.adopt(adopted)
    for step in range(1, 10):
        assert client.take(step, PATIENCE).plan == planner.plan(step)
    assert client.process_id is not None
    os.kill(client.process_id, signal.SIGKILL)
    assert client.take(200, PATIENCE).plan is None
    assert client.ready(PATIENCE)
    assert client.take(201, PATIENCE).plan == planner.plan(201)
    statistics = client.statistics()
    assert (statistics.dropped, statistics.refused, statistics.restarts) == (0, 0, 1)


def test_plans_in_hand_by_other_costs_are_dropped_and_made_again(client: PlannerClient) -> None:
    assert client.ready(PATIENCE, plans=3)
    for adopted in (Adopted((Version(1, SLOW),)), Adopted(), Adopted((Version(0, SLOW),))):
        client.adopt(adopted)
        planner = Planner(settings(replicas=2))
        planner.batches.adopt(adopted)
        for step in (0, 1, 2):
            assert client.take(step, PATIENCE).plan == planner.plan(step)
    assert client.statistics().refused == 0


def test_a_leader_falls_back_by_adopted_costs(client: PlannerClient) -> None:
    leader = LeaderSource(Planner(settings(replicas=2)), None, client, first_deadline_s=PATIENCE)
    leader.adopt(Adopted((Version(40, SLOW),)))
    assert leader.next(0).batch.adopted == ()
    assert client.process_id is not None
    os.kill(client.process_id, signal.SIGKILL)
    end = time.monotonic() + PATIENCE
    while client._down is None and time.monotonic() < end:
        time.sleep(0.001)
    plan = leader.next(40)
    assert (plan.kind, plan.batch.adopted) == ("fallback", SLOW)
    samples = Planner(settings(replicas=2)).batches.samples(3)
    assert leader.evaluation(samples).batch.adopted == SLOW


def test_a_recorded_plan_is_planned_again_by_its_own_lines() -> None:
    planner, other = Planner(settings(replicas=2)), Planner(settings(replicas=2))
    planner.batches.adopt(Adopted((Version(5, SLOW),)))
    for step in (7, 3, 8):
        assert plan_again(decode_plan(encode_plan(planner.plan(step))), other).same


def test_a_record_of_before_there_were_adopted_costs_is_read_and_planned_again() -> None:
    content = msgpack.unpackb(encode_plan(PLAN))[2].replace(b',"adopted":[]', b"")
    assert b"adopted" not in content
    old = decode_plan(msgpack.packb([FORMAT, VERSION, content, hashlib.sha256(content).hexdigest()]))
    assert old.batch == PLAN.batch
    assert plan_again(old, Planner(settings())).same
