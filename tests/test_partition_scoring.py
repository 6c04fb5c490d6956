"""Scores: what the planner would predict for the same batches, and bounds that never exceed them."""

from __future__ import annotations

from math import fsum, prod

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.costs.strategies import STRATEGIES
from ds_dip.data import DatasetReference
from ds_dip.data.digits import Digits
from ds_dip.models.spec import Sizes
from ds_dip.partition import make_partition
from ds_dip.partition.memory import Memory
from ds_dip.partition.scoring import MOST_STAGES, Remembered, Score, Scorer, UnfitError
from ds_dip.partition.workload import Workload, draw
from ds_dip.planner.ordering import schedulers
from ds_dip.planner.plan import Planner
from ds_dip.planner.settings import PlannerSettings
from tests.partition_cases import PROCESSOR, QUICKSTART, digits, model_of, random_workload, schedule, scorer


def test_a_searched_score_is_what_the_planner_predicts_with_its_search() -> None:
    partition = make_partition(QUICKSTART, 2, {"language": 2}, {"vision": 6}, placement="zigzag")
    dataset, opened = DatasetReference("ds_dip.data.digits:Digits", {"samples": 100}), Digits(100)
    planner = Planner(
        PlannerSettings(QUICKSTART, partition, dataset, 24, microbatches=3, rates=PROCESSOR, evaluations=60)
    )
    own = scorer(Workload(draw(100, opened.metadata, 24, 2), 3)).by(schedulers("dip", 60)[1])
    # One times the order as it is found, the other as it is compiled: sums of the same seconds, but for their order.
    assert scored(own, partition).makespans == pytest.approx(
        [planner.plan(step).makespan for step in range(2)], rel=1e-12
    )


def test_a_makespan_at_its_bound_but_for_rounding_has_no_gap() -> None:
    summed = sum([0.1] * 10)
    assert summed < 1.0
    own = Score(make_partition(QUICKSTART, 2), "level", (summed,), (1.0,), 0.0, (0.0, 0.0), (0.0, 0.0))
    assert own.gap == 0.0


def scored(own: Scorer, *arguments: object) -> Score:
    score = own.score(*arguments)  # type: ignore[arg-type]
    assert score is not None
    return score


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_score_is_what_the_planner_predicts_for_the_same_batches(replicas: int) -> None:
    partition = make_partition(QUICKSTART, 2, {"language": 2}, {"vision": 6})
    dataset = DatasetReference("ds_dip.data.digits:Digits", {"samples": 200})
    opened = Digits(200)
    workload = Workload(draw(200, opened.metadata, 24, 3, seed=7), 3, replicas)
    plans = [
        [
            Planner(
                PlannerSettings(
                    QUICKSTART, partition, dataset, 24, seed=7, replicas=replicas, replica=replica, microbatches=3,
                    rates=PROCESSOR, evaluations=0,
                )
            ).plan(step)
            for replica in range(replicas)
        ]
        for step in range(3)
    ]  # fmt: skip
    score = scored(scorer(workload), partition)
    assert score.makespans == tuple(max(plan.makespan for plan in own) for own in plans)
    slowest = [max(own, key=lambda plan: plan.makespan) for own in plans]
    assert score.bounds == tuple(plan.lower_bound for plan in slowest)
    # A score leaves messages to the reserve of the links: at most four each way, and one of each kind handed over.
    every = [plan for own in plans for plan in own]
    bytes_of = [4 * sum(map(prod, (t[0] for t in m.tensors))) for p in every for m in p.programs[0].messages]
    for rank, own in enumerate(score.activations):
        assert own <= max(plan.peak_memory[rank] for plan in every) <= own + (2 * 4 + 2) * max(bytes_of)
    assert score.mean == pytest.approx(fsum(score.makespans) / 3)


@hypothesis(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 3), st.none() | st.integers(1, 3), st.integers(1, 2))
def test_the_work_of_the_busiest_rank_is_a_lower_bound(seed: int, ranks: int, limit: int | None, replicas: int) -> None:
    model = model_of(vision=[1000, 20000, 400], language=[500, 3000, 100, 9000])
    own = scorer(random_workload(model, seed, replicas=replicas), Rates(), model)
    partition = make_partition(model, ranks, None, {"vision": limit})
    score = scored(own, partition)
    least = own.least(partition)
    assert all(
        low <= bound * (1 + 1e-9) and bound <= span * (1 + 1e-9)
        for low, bound, span in zip(least, score.bounds, score.makespans, strict=True)
    )
    assert -1e-9 <= score.bubble <= 1
    assert own.score(partition, "", score.mean * 0.999) is None
    assert own.score(partition, "", score.mean * 1.001) == score


def test_what_cannot_win_is_not_scheduled() -> None:
    own = scorer()
    partition = make_partition(QUICKSTART, 2)
    least = own.least(partition)
    assert own.score(partition, "", fsum(least) / len(least)) is None
    assert own.used == 0
    scored(own, partition)
    assert own.used == len(least)


def test_seconds_of_layers_are_those_of_a_mean_batch() -> None:
    own = scorer()
    partition = make_partition(QUICKSTART, 1, None, {"vision": 4})
    total = sum(map(sum, own.layer_seconds(partition).values()))
    assert total == pytest.approx(fsum(own.least(partition)) / len(own.least(partition)))


def test_a_rank_whose_state_fills_its_memory_is_told_with_the_numbers() -> None:
    own = scorer(memory=Memory(bytes=1e6))
    with pytest.raises(UnfitError, match=r"rank 0 holds 0\.00\d+ GB of parameters.*nothing of 0\.001 GB"):
        own.score(make_partition(QUICKSTART, 2))


def test_activations_keep_within_what_the_state_leaves() -> None:
    partition = make_partition(QUICKSTART, 2, {"language": 2})
    free = scored(scorer(), partition)
    peak = max(map(sum, zip(free.state, free.activations, strict=True)))
    memory = Memory(bytes=0.9 * peak, headroom=0.0, link_depth=1)
    tight = scored(scorer(memory=memory), partition)
    assert all(state + own <= 0.9 * peak for state, own in zip(tight.state, tight.activations, strict=True))
    assert tight.mean >= free.mean


def test_a_batch_that_fits_nowhere_is_told() -> None:
    partition = make_partition(QUICKSTART, 2)
    state = max(Memory().state(QUICKSTART, partition))
    with pytest.raises(UnfitError, match="batch 0: "):
        scorer(memory=Memory(bytes=state + 1e5, headroom=0.0, link_depth=1)).score(partition)


def test_more_stages_than_can_be_planned_in_time_are_refused() -> None:
    batch = tuple(Digits(3000).metadata(index) for index in range(3000))
    own = scorer(Workload((batch,), 4))
    with pytest.raises(UnfitError, match=f"stages, more than the {MOST_STAGES}"):
        own.score(make_partition(QUICKSTART, 2, None, {"vision": 1}))


def test_costs_are_asked_for_once() -> None:
    calls = []

    class Counted(Roofline):
        def forward(self, module: str, start: int, stop: int, sizes: Sizes) -> float:
            calls.append((module, start, stop, sizes))
            return super().forward(module, start, stop, sizes)

    costs = Remembered(Counted(QUICKSTART))
    sizes = Sizes((16,), (1,))
    assert costs.forward("vision", 0, 2, sizes) == costs.forward("vision", 0, 2, sizes)
    assert len(calls) == 1
    assert costs.backward("vision", 0, 2, sizes) == Roofline(QUICKSTART).backward("vision", 0, 2, sizes)


def test_other_schedules_can_be_asked_for() -> None:
    from ds_dip.planner.ordering import fastest

    workload, partition = digits(), make_partition(QUICKSTART, 2)
    costs = Roofline(QUICKSTART, PROCESSOR)
    plain = scored(Scorer(QUICKSTART, workload, costs, lambda problem: fastest(problem, "1f1b")), partition)
    assert plain.mean >= scored(Scorer(QUICKSTART, workload, costs, schedule), partition).mean


@hypothesis(deadline=None, max_examples=6)
@given(st.integers(1, 2), st.sampled_from([None, 4, 8]), st.sampled_from(["looped", "zigzag"]), st.floats(0.15, 1.0))
def test_strategies_never_make_a_partition_slower_or_unfit(
    laps: int, limit: int | None, placement: str, share: float
) -> None:
    partition = make_partition(QUICKSTART, 2, {"language": laps}, {"vision": limit}, placement=placement)
    batch = digits(batches=1)
    most = scored(scorer(batch), partition).activations
    memory = Memory(limits=tuple(share * own for own in most))
    plain, free = (
        scorer(memory=memory, strategies=own).by(schedulers("dip", 60)[0]) for own in (("none",), STRATEGIES)
    )
    try:
        kept = scored(plain, partition)
    except UnfitError:
        return
    found = scored(free, partition)
    assert found.mean <= kept.mean * (1 + 1e-9)
    assert all(held <= own * (1 + 1e-9) for held, own in zip(found.activations, memory.limits, strict=True))


def test_strategies_let_partitions_run_that_would_not_fit() -> None:
    partition = make_partition(QUICKSTART, 2, {"language": 2})
    memory = Memory(limits=tuple(0.35 * own for own in scored(scorer(), partition).activations))
    with pytest.raises(UnfitError, match="microbatch 0 alone needs"):
        scored(scorer(memory=memory), partition)
    assert scored(scorer(memory=memory, strategies=STRATEGIES).by(schedulers("dip", 60)[0]), partition).mean > 0


def test_a_batch_of_more_stages_than_are_allowed_is_refused() -> None:
    partition = make_partition(QUICKSTART, 2, {"language": 2})
    with pytest.raises(UnfitError, match="more than the 12 that can be planned in time"):
        scored(scorer(most_stages=12), partition)
