"""Plans that are changed in any way: none is accepted that would hang, mis-shape, exceed memory or train on other data.

What an accepted plan does is found out without the check: its programs run on threads, in fp64, over links where only
what both ranks have next passes, and its gradient is compared with that of one process.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from ds_dip.costs.roofline import Roofline
from ds_dip.data import DatasetReference, Sampler
from ds_dip.partition import make_partition
from ds_dip.planner import PlanError, Planner, PlannerSettings, StepPlan
from ds_dip.planner.record import decode_plan, encode_plan, seal
from ds_dip.planner.verification import Verifier
from ds_dip.programs.program import Backward, Forward, PostReceive, WaitSend
from ds_dip.runtime.executor import Executor
from tests.plan_mutations import (
    of_instructions,
    of_messages,
    of_the_batch,
    of_the_numbers,
    of_the_record,
    renamed,
    timed,
)
from tests.planner_cases import Samples, settings
from tests.strict_links import StrictLinks, StrictTransport
from tests.test_executor import Compute, dtype_of, largest_error, loaded
from tests.toy import Toy, ToyDataset

OPTIONS = {"seed": 3, "share": 0.8, "encoders": 1, "length": 24}
DATA = ToyDataset(**OPTIONS)  # type: ignore[arg-type]  # as the planner's process would open it


class Setting:
    """A toy model on so many ranks, its planner, and real plans of it."""

    def __init__(self, seed: int, ranks: int, laps: int, frozen: Sequence[str] = ()) -> None:
        self.toy = Toy(seed, encoders=1, layers=4, frozen=frozen)
        partition = make_partition(self.toy.model, ranks, {"vision": laps, "language": laps}, {"vision": 2})
        free = PlannerSettings(
            self.toy.model, partition, DatasetReference("tests.toy:ToyDataset", OPTIONS), batch_size=6, microbatches=3,
            link_depth=2, paced=False, evaluations=20,
        )  # fmt: skip
        # Room for what the plans need and hardly more, so that another order may not fit.
        peaks = [Planner(free).plan(step).peak_memory for step in range(4)]
        self.settings = replace(free, memory_capacity=tuple(max(p[rank] for p in peaks) for rank in range(ranks)))
        self.planner = Planner(self.settings)
        self.sampler = Sampler(len(DATA), self.settings.batch_size, self.settings.seed)
        self.plans = [self.planner.plan(step) for step in range(4)]
        self.verifier = Verifier(self.planner)


SETTINGS = [Setting(1, 2, 2), Setting(2, 2, 1, ("vision",)), Setting(5, 4, 1)]


def run(setting: Setting, plan: StepPlan) -> None:
    """Run a plan's programs; raises where they hang, mis-shape, or do not give the gradient of the step's samples."""
    layers, wanted = setting.toy.layers(), setting.toy.layers()
    links = StrictLinks(len(plan.programs))
    total = torch.zeros((), dtype=torch.float64)

    def work(rank: int) -> torch.Tensor | None:
        executor = Executor(
            setting.toy.model, setting.settings.partition, Compute(layers, plan.batch.loss_count),
            StrictTransport(links, rank), lambda *where: loaded(DATA, *where),
            device=torch.device("cpu"), dtype=dtype_of,
        )  # fmt: skip
        executor.begin(plan.programs[rank], plan.batch, train=True)
        for instruction in plan.programs[rank].instructions:
            executor.execute(instruction)
        executor.finish()
        return executor.loss_sum

    with ThreadPoolExecutor(len(plan.programs)) as pool:
        for future in [pool.submit(work, rank) for rank in range(len(plan.programs))]:
            if (loss := future.result()) is not None:
                total += loss / plan.batch.loss_count
    samples = [DATA.metadata(index) for index in setting.sampler.indices(plan.step)]
    count = sum(sample.loss_tokens for sample in samples)
    expected = setting.toy.reference(DATA, samples, count, wanted)
    assert abs(float(total - expected)) <= 1e-10 * abs(float(expected))
    assert largest_error(layers, wanted) <= 1e-10


def walk(setting: Setting, plan: StepPlan) -> None:
    """Add up what forwards keep, stage by stage; raises where that is more than there is room for."""
    costs = Roofline(setting.toy.model, setting.settings.rates)
    bounds = {(c.module, c.index): (c.start, c.stop) for c in setting.settings.partition.chunks}
    assert setting.settings.memory_capacity is not None
    for rank, program in enumerate(plan.programs):
        held = 0.0
        for instruction in program.instructions:
            if not isinstance(instruction, Forward | Backward):
                continue
            stage = instruction.stage
            sizes = plan.batch.microbatches[stage.microbatch].sub_sizes(stage.module, stage.sub)
            kept = costs.activation_bytes(stage.module, *bounds[stage.module, stage.chunk], sizes)
            if isinstance(instruction, Forward):
                held += kept
                assert held <= setting.settings.memory_capacity[rank] * (1 + 1e-9)
            if isinstance(instruction, Backward) or not setting.toy.model.backward(stage.module):
                held -= kept


def mutated(setting: Setting, rng: random.Random) -> bytes:
    """The record of a real plan, changed one to three times."""
    plan = rng.choice(setting.plans)
    if rng.random() < 0.25:
        return of_the_record(encode_plan(plan), rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        plan = rng.choice((of_instructions, of_instructions, of_messages, of_the_batch, of_the_numbers))(plan, rng)
    return encode_plan(seal(plan))


def accepted(setting: Setting, record: bytes) -> StepPlan | None:
    """The plan, if the leader would believe its record."""
    try:
        plan = decode_plan(record)
        setting.verifier.check(plan)
    except PlanError:
        return None
    return plan


def hold(setting: Setting, rng: random.Random) -> None:
    try:
        record = mutated(setting, rng)
    except (IndexError, ValueError, AttributeError):  # nothing is left to change, or to write down
        hypothesis.reject()
    plan = accepted(setting, record)
    hypothesis.event("refused" if plan is None else "accepted")
    if plan is not None:
        walk(setting, plan)
        run(setting, plan)


MUTANTS = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}


@hypothesis.settings(max_examples=300, **MUTANTS)
@hypothesis.given(st.sampled_from(range(len(SETTINGS))), st.randoms(use_true_random=False))
def test_no_changed_plan_is_accepted_that_should_not_run(setting: int, rng: random.Random) -> None:
    hold(SETTINGS[setting], rng)


@pytest.mark.nightly
@hypothesis.settings(max_examples=10_000, **MUTANTS)
@hypothesis.given(st.sampled_from(range(len(SETTINGS))), st.randoms(use_true_random=False))
def test_none_of_ten_thousand_changed_plans_is_accepted_that_should_not_run(setting: int, rng: random.Random) -> None:
    hold(SETTINGS[setting], rng)


@pytest.mark.parametrize("setting", SETTINGS)
def test_real_plans_are_accepted_and_run(setting: Setting) -> None:
    for plan in setting.plans:
        assert accepted(setting, encode_plan(plan)) == plan
        walk(setting, plan)
        run(setting, plan)


def posted_late(setting: Setting) -> StepPlan:
    """One end of a link posts its first message at the end."""
    return edited(setting, lambda body: [i for i in body if i != first(body)] + [first(body)])


def first(body: Sequence[Any]) -> Any:
    return next(i for i in body if isinstance(i, PostReceive))


def edited(setting: Setting, edit: Any) -> StepPlan:
    plan = setting.plans[0]
    programs = [replace(p, instructions=tuple(edit(list(p.instructions)))) for p in plan.programs]
    return timed(replace(plan, programs=tuple(programs)))


def two_receives_exchanged(setting: Setting) -> StepPlan:
    """The last rank posts its first two receives in the other order."""
    plan = setting.plans[0]
    body = list(plan.programs[-1].instructions)
    a, b = [place for place, i in enumerate(body) if isinstance(i, PostReceive)][:2]
    body[a], body[b] = body[b], body[a]
    last = replace(plan.programs[-1], instructions=tuple(body))
    return replace(plan, programs=(*plan.programs[:-1], last))


def another_shape(setting: Setting) -> StepPlan:
    plan = setting.plans[0]
    one = plan.programs[0].messages[0]
    (shape, dtype), *rest = one.tensors
    changed = replace(one, tensors=(((shape[0] + 1, *shape[1:]), dtype), *rest))
    return renamed(plan, {}, {one.id: changed})


def another_steps_samples(setting: Setting) -> StepPlan:
    plan = setting.plans[1]
    return replace(plan, step=0, batch=replace(plan.batch, step=0))


def another_count(setting: Setting) -> StepPlan:
    plan = setting.plans[0]
    return replace(plan, batch=replace(plan.batch, loss_count=plan.batch.loss_count + 1))


def no_backward(setting: Setting) -> StepPlan:
    return Planner(setting.settings).evaluation(0, [DATA.metadata(index) for index in setting.sampler.indices(0)])


WRONG = {
    "hangs: posted late": (posted_late, "could not run"),
    "hangs: receives exchanged": (two_receives_exchanged, "could not run: link"),
    "mis-shapes": (another_shape, r"has the tensors .* its stages make"),
    "another step's samples": (another_steps_samples, r"holds the samples|divides the loss"),
    "another count": (another_count, "divides the loss of step 0 by"),
    "no backward": (no_backward, "does not run every stage"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused_and_does_go_wrong(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of the mutants sees what the check sees."""
    monkeypatch.setitem(run.__globals__, "STUCK_S", 0.3)
    setting, (make, sentence) = SETTINGS[0], WRONG[what]
    plan = make(setting)
    with pytest.raises(PlanError, match=sentence):
        setting.verifier.check(plan)
    with pytest.raises((AssertionError, TimeoutError, RuntimeError, LookupError)):
        run(setting, plan)


def test_more_memory_than_there_is_and_a_prediction_that_lies_are_refused() -> None:
    setting = SETTINGS[0]
    plan = setting.plans[0]
    half = replace(setting.settings, memory_capacity=tuple(peak * 0.5 for peak in plan.peak_memory))
    with pytest.raises(PlanError, match=r"rank 0 would hold \d+ bytes of activations, the limit is \d+"):
        Verifier(Planner(half)).check(plan)
    with pytest.raises(PlanError, match=r"rank 0 would hold \d+ bytes of activations, the plan says 0"):
        setting.verifier.check(replace(plan, peak_memory=(0.0, 0.0)))
    tight = Setting(1, 2, 2)
    tight.settings = half
    with pytest.raises(AssertionError):
        walk(tight, plan)


def test_sent_messages_that_are_held_are_bounded_by_the_links_depth() -> None:
    setting = SETTINGS[0]

    def waits_last(body: list[Any]) -> list[Any]:
        return [i for i in body if not isinstance(i, WaitSend)] + [i for i in body if isinstance(i, WaitSend)]

    with pytest.raises(PlanError, match="rank 0 holds more than 2 sent messages to rank 1 at once"):
        setting.verifier.check(edited(setting, waits_last))


def test_split_backwards_hold_their_activations_until_the_weights_gradients() -> None:
    free = settings(split=0.0)
    peaks = [Planner(free).plan(step).peak_memory for step in range(3)]
    tight = settings(split=0.0, memory_capacity=tuple(0.8 * max(p[rank] for p in peaks) for rank in range(2)))
    plans = [(own, Planner(own).plan(step)) for own in (free, tight) for step in range(3)]
    split = [(own, plan) for own, plan in plans if any(s.stage.kind == "W" for rank in plan.stages for s in rank)]
    assert split
    for own, plan in plans:
        Verifier(Planner(own)).check(plan)
    own, plan = split[0]
    less = replace(own, memory_capacity=tuple(0.999 * peak for peak in plan.peak_memory))
    with pytest.raises(PlanError, match="bytes of activations, the limit is"):
        Verifier(Planner(less)).check(plan)


def test_every_kind_of_plan_that_a_planner_makes_is_accepted() -> None:
    for changes in ({}, {"schedule": "1f1b"}, {"schedule": "interleaved"}, {"replicas": 3, "replica": 2, "seed": 4}):
        planner = Planner(settings(**changes))  # type: ignore[arg-type]  # a mapping of settings
        verifier = Verifier(planner)
        for step in range(12):
            verifier.check(planner.plan(step))
            verifier.check(planner.fallback(step, "late"))


def test_a_dataset_that_its_leader_reads_otherwise_is_told_apart_from_one_it_cannot_read() -> None:
    class Other(Samples):
        def metadata(self, index: int) -> Any:
            sample = super().metadata(index)
            return replace(sample, modules={**sample.modules, "language": (sample.modules["language"][0] + 1,)})

    plan = Planner(settings()).plan(0)
    with pytest.raises(PlanError, match="other metadata in the plan than in the dataset|holds the samples"):
        Verifier(Planner(settings(), Other())).check(plan)
