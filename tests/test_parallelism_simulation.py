"""Simulated layouts against the planner's own problems, against formulas, and against what memory holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.models.partition import PartitionError
from ds_dip.parallelism import CONTIGUOUS, DISAGGREGATED, SEPARATED, Layout, Mesh, Simulator
from ds_dip.parallelism.fixed import warm_ups
from ds_dip.parallelism.groups import tails_of
from ds_dip.parallelism.kernels import in_order, simulate
from ds_dip.parallelism.placing import Pipelines, problem_of
from ds_dip.parallelism.space import Options, columns
from ds_dip.partition.scoring import UnfitError
from ds_dip.planner.ordering import fastest
from ds_dip.scheduling import lower_bound
from tests.parallelism_cases import job, model_of, samples

STRATEGIES = ("none", "selective", "full")


def together(pipeline: int, data: int = 1, *, tensor: int = 1, microbatches: int = 4, laps: tuple[int, ...] = (1, 1),
             strategy: str = "none") -> Layout:  # fmt: skip
    mesh = Mesh(tensor, pipeline, data)
    return Layout(SEPARATED, mesh, mesh, microbatches, laps, strategy)


def apart(encoder: Mesh, backbone: Mesh, microbatches: int = 4, strategy: str = "none") -> Layout:
    return Layout(DISAGGREGATED, encoder, backbone, microbatches, (1, 1), strategy)


def run(forward: float, backward: float, microbatches: int, ranks: int, admitted: int) -> float:
    shape = microbatches, ranks
    times = np.full(shape, forward), np.full(shape, backward), np.zeros(shape)
    rank, busy, end = np.zeros(shape, np.int64) + np.arange(ranks), np.zeros(ranks), np.zeros(ranks)
    most, _ = simulate(*times, rank, 0, np.zeros(microbatches, np.int64), 1, admitted, 1 << 40, busy, end)
    assert most <= admitted
    assert busy == pytest.approx(np.full(ranks, microbatches * (forward + backward)))
    return float(end.max())


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.floats(1, 3))
def test_equal_stages_take_what_1f1b_takes(ranks: int, microbatches: int, backward: float) -> None:
    forward = 1.0
    best = (microbatches + ranks - 1) * (forward + backward)
    assert run(forward, backward, microbatches, ranks, 1 << 40) == pytest.approx(best)
    assert run(forward, backward, microbatches, ranks, ranks) >= best * (1 - 1e-9)
    assert run(forward, backward, microbatches, ranks, 1) == pytest.approx(microbatches * ranks * (forward + backward))


LAYOUTS = [
    together(2, 2, laps=(2, 1)),
    together(4, laps=(1, 1), strategy="selective"),
    together(1, 4, microbatches=2),
    together(2, tensor=2, strategy="full"),
    apart(Mesh(1, 1, 1), Mesh(1, 3, 1)),
    apart(Mesh(1, 1, 2), Mesh(1, 1, 2), strategy="full"),
    apart(Mesh(2, 1, 1), Mesh(1, 2, 1)),
    apart(Mesh(1, 1, 1), Mesh(1, 1, 3), strategy="selective"),
    apart(Mesh(1, 1, 2), Mesh(2, 1, 1)),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_work_is_the_planners_and_no_simulation_is_below_the_bound_of_its_problem(layout: Layout) -> None:
    own = job(layout.gpus, 12 if layout.backbone.data == 3 else 8, seed=3)
    simulator = Simulator(own, [own.drawn(0, 0)])
    partition = simulator.partition(layout)
    tails = tails_of(own, layout, partition)
    found = simulator.predict(layout)
    assert found is not None
    bounds, work = [], []
    for batch in simulator.cut(layout, 0):
        problem = problem_of(own, layout, partition, batch, (None,) * partition.ranks, tails)
        bounds.append(lower_bound(problem)[0])
        loads = [0.0] * problem.ranks
        for task in problem.tasks:
            loads[task.rank] += task.duration
        work.append(loads)
        assert fastest(problem, "dip")[2].makespan >= bounds[-1] * (1 - 1e-9)
    # What selective recomputation takes is known for the mean sample only.
    close = 0.02 if layout.strategy == "selective" else 1e-6
    if Pipelines.of(layout).pieces == 1:
        assert found.makespans[0] >= max(bounds) * (1 - close)
    if layout.placement == SEPARATED:
        busiest = [max(load + tail for load, tail in zip(loads, tails, strict=True)) for loads in work]
        assert found.parts.work + found.parts.ending == pytest.approx(sum(busiest) / len(busiest), rel=close)
    parts = found.parts
    assert parts.work + parts.waiting + parts.ending + parts.longer == pytest.approx(found.mean)
    assert 0 <= found.bubble < 1


@pytest.mark.parametrize("encoders", [Mesh(1, 2, 3), Mesh(1, 1, 6), Mesh(1, 1, 4), Mesh(1, 2, 2)], ids=str)
def test_encoder_replicas_that_share_a_microbatch_are_waited_for_as_in_the_planners_order(encoders: Mesh) -> None:
    layout = apart(encoders, Mesh(1, 8 - encoders.tensor * encoders.pipeline * encoders.data, 1))
    for seed in range(4):
        own = job(8, 8, seed=seed)
        simulator = Simulator(own, [own.drawn(0, 0)])
        found = simulator.predict(layout)
        assert found is not None
        tails, partition = tails_of(own, layout, found.partition), found.partition
        (batch,) = simulator.cut(layout, 0)
        problem = problem_of(own, layout, partition, batch, (None,) * partition.ranks, tails)
        assert found.makespans[0] == pytest.approx(fastest(problem, "dip")[2].makespan, rel=0.03)
        assert found.makespans[0] >= lower_bound(problem)[0] * 0.99


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(LAYOUTS), st.one_of(st.none(), st.floats(0.5, 2)), st.booleans())
def test_no_prediction_is_below_its_bound(seed: int, layout: Layout, scale: float | None, fixed: bool) -> None:
    batch = 12 if layout.backbone.data == 3 else 8

    def simulator(memory: float | None) -> Simulator:
        own = job(layout.gpus, batch, seed=seed, memory=memory)
        return Simulator(own, [own.drawn(step, seed) for step in range(2)], fixed=fixed)

    try:
        whole = simulator(None).predict(layout)
        assert whole is not None
        own = simulator(None if scale is None else scale * whole.memory)
        found = own.predict(layout)
    except (PartitionError, UnfitError):
        return
    assert found is not None
    assert found.bound <= found.mean * (1 + 1e-9)
    assert own.least(layout)[0] <= found.makespans[0] * (1 + 1e-9)
    # A limit leaves out what is not below it, and nothing else.
    assert own.predict(layout, limit=found.mean * (1 - 1e-9)) is None
    again = own.predict(layout, limit=found.mean * (1 + 1e-9))
    assert again == found
    # Without every replica, what the heaviest batch keeps is told as the most that it may be.
    least = own.predict(layout, every=False)
    assert least is not None
    assert least.short == found.short or not least.short
    assert all(a >= b * (1 - 1e-12) for a, b in zip(least.activations, found.activations, strict=True))


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.floats(1, 3))
def test_1f1b_of_equal_stages_is_its_formula(ranks: int, microbatches: int, backward: float) -> None:
    shape = microbatches, ranks
    busy, end = np.zeros(ranks), np.zeros(ranks)
    times = np.ones(shape), np.full(shape, backward), np.zeros(shape)
    rank, warm = np.zeros(shape, np.int64) + np.arange(ranks), np.arange(ranks - 1, -1, -1)
    assert in_order(*times, rank, warm, busy, end)
    assert end.max() == pytest.approx((microbatches + ranks - 1) * (1 + backward))
    assert busy == pytest.approx(np.full(ranks, microbatches * (1 + backward)))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_encoders_of_1f1b_run_far_enough_ahead(deep: int, before: int, wide: int, behind: int, each: int) -> None:
    # Whatever the replicas: no rank waits for another one for ever.
    layout = apart(Mesh(1, deep, before), Mesh(1, wide, behind), microbatches=each)
    own = Pipelines.of(layout)
    sets = max(1, own.encoders // own.pieces)
    count, ranks = own.microbatches, sets * deep + own.backbones * wide
    number = np.arange(count)[:, None]
    rank = np.concatenate(
        [number % sets * deep + np.arange(deep), sets * deep + number % own.backbones * wide + np.arange(wide)], axis=1
    )
    shape, busy, end = rank.shape, np.zeros(ranks), np.zeros(ranks)
    warm = warm_ups(layout, sets)
    assert len(warm) == ranks
    assert in_order(np.ones(shape), np.ones(shape), np.zeros(shape), rank, warm, busy, end)
    assert busy.sum() == pytest.approx(2 * rank.size)


def test_1f1b_needs_a_chain_and_room_for_what_it_has_in_flight() -> None:
    layout = together(2, laps=(2, 1))
    own = job(2, 8)
    with pytest.raises(PartitionError, match="1F1B needs one stage a rank: use K 1"):
        Simulator(own, [own.drawn(0, 0)], fixed=True).predict(layout)
    layout = apart(Mesh(1, 1, 1), Mesh(1, 3, 1))
    whole = Simulator(job(4, 8), [job(4, 8).drawn(0, 0)], fixed=True).predict(layout)
    assert whole is not None
    limited = job(4, 8, memory=0.95 * whole.memory)
    with pytest.raises(UnfitError, match=r"microbatches that 1F1B has in flight there, and .* GB are left"):
        Simulator(limited, [limited.drawn(0, 0)], fixed=True).predict(layout)


def test_replicas_are_groups_by_their_common_divisor() -> None:
    for before, behind, groups, pieces in ((4, 2, 2, 2), (2, 4, 2, 1), (3, 2, 1, 2), (1, 5, 1, 1)):
        own = Pipelines.of(apart(Mesh(1, 1, before), Mesh(1, 1, behind)))
        assert (own.groups, own.pieces) == (groups, pieces)
        assert own.groups * own.encoders == before
        assert own.groups * own.backbones == behind
        assert own.microbatches == 4 * own.backbones


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.floats(0.3, 4), st.sampled_from(STRATEGIES), st.sampled_from([0, 1, 4, 5, 7]))
def test_what_fits_in_simulation_fits_the_planners_problem_of_the_heaviest_batch(
    seed: int, scale: float, strategy: str, number: int
) -> None:
    layout = LAYOUTS[number]
    batch = 12 if layout.backbone.data == 3 else 8
    layout = Layout(layout.placement, layout.encoder, layout.backbone, layout.microbatches, layout.laps, strategy)
    free = job(layout.gpus, batch, seed=seed)
    whole = Simulator(free, [free.drawn(0, 0)]).predict(layout)
    assert whole is not None
    own = job(layout.gpus, batch, seed=seed, memory=scale * whole.memory)
    simulator = Simulator(own, [own.drawn(0, 0)])
    try:
        found = simulator.predict(layout)
    except UnfitError:
        return
    assert found is not None
    assert own.cluster.memory is not None
    assert found.memory <= own.cluster.memory
    room = simulator.room(layout, found.partition)
    for group in simulator.cut(layout, -1):
        problem = problem_of(own, layout, found.partition, group, room.left, tails_of(own, layout, found.partition))
        assert fastest(problem, "dip")[2].makespan > 0


def test_no_batch_that_is_drawn_holds_more_than_the_heaviest() -> None:
    own = job(1, 8, profile=samples(30, 5))
    costs = own.costs(1)

    def held(batch: tuple[object, ...]) -> float:
        total = 0.0
        for sample in batch:
            for module in own.model.modules:
                from ds_dip.planning.cut import sizes_of

                sizes = sizes_of([sample], own.model)[module.name]  # type: ignore[list-item]
                total += costs.activation_bytes(module.name, 0, len(module.layers), sizes)
        return total

    most = held(own.heaviest)
    assert all(held(own.drawn(step, 1)) <= most * (1 + 1e-12) for step in range(50))


def test_sums_over_kinds_are_the_costs() -> None:
    own = job(1, 8)
    costs = own.costs(2)
    for module in own.model.modules:
        sizes = own.mean_point(module.name, 3.0)
        for start, stop in ((0, 0), (0, 2), (1, 4), (0, len(module.layers))):
            for name in ("forward", "backward", "activation_bytes"):
                wanted = getattr(costs.costs, name)(module.name, start, stop, sizes)
                assert getattr(costs, name)(module.name, start, stop, sizes) == pytest.approx(wanted, rel=1e-12)


def test_the_space_uses_all_gpus_and_divides_what_must_be_divided() -> None:
    own = job(8, 12, model=model_of(heads=4), per_node=4)
    space = columns(own, Options())
    assert len(space)
    for row in range(len(space)):
        layout = space.layout(row, (1, 1), "none")
        assert layout.gpus == 8
        assert own.batch % (layout.backbone.data * layout.microbatches) == 0
        assert {layout.encoder.tensor, layout.backbone.tensor} <= {1, 2, 4}
        if layout.placement == CONTIGUOUS:
            assert 2 <= layout.backbone.pipeline <= 11
        else:
            assert layout.backbone.pipeline <= 6
            assert layout.encoder.pipeline <= 5
    assert len({space.layout(row, (1, 1), "none") for row in range(len(space))}) == len(space)
