"""The best layout: what every layout gives, and what the paper's objective would choose, as the oracles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.costs.strategies import STRATEGIES
from ds_dip.parallelism import DISAGGREGATED, SEPARATED, Job, Simulator, closed, optimize
from ds_dip.parallelism.optimizer import Effort, LayoutError
from ds_dip.parallelism.simulation import Prediction
from ds_dip.parallelism.space import Options, columns, laps
from ds_dip.partition.scoring import UnfitError
from ds_dip.planner.ordering import fastest
from ds_dip.scheduling import Problem
from tests.parallelism_cases import job, model_of

OPTIONS = Options(most_laps=2)


def schedule(problem: Problem) -> object:
    return fastest(problem, "dip")


def every(own: Job, effort: Effort, options: Options = OPTIONS) -> list[Prediction]:
    """All layouts by all memory strategies, on the held-out batches."""
    steps = range(effort.batches, effort.batches + effort.held_out)
    simulator = Simulator(own, [own.drawn(step, effort.seed) for step in steps])
    found = []
    space = columns(own, options)
    for row in range(len(space)):
        plain = space.layout(row, (1, 1), "none")
        for chosen in laps(own, plain, options):
            for strategy in STRATEGIES:
                try:
                    prediction = simulator.predict(replace(plain, laps=chosen, strategy=strategy))
                except UnfitError:
                    continue
                assert prediction is not None
                found.append(prediction)
    return found


@pytest.mark.parametrize(("gpus", "seed", "memory"), [(2, 0, None), (4, 1, None), (4, 2, 6e5), (3, 3, 1e6)])
def test_a_small_space_is_searched_whole(gpus: int, seed: int, memory: float | None) -> None:
    own = job(gpus, 6, seed, memory=memory, model=model_of(2, 3, heads=2))
    effort = Effort(batches=1, held_out=2, exhaustive=10_000)
    found = optimize(own, schedule, OPTIONS, effort)  # type: ignore[arg-type]
    oracle = min(every(own, effort), key=lambda prediction: prediction.mean)
    assert found.best.mean == pytest.approx(oracle.mean, rel=1e-12)
    assert memory is None or found.best.memory <= memory


@pytest.mark.parametrize("seed", range(4))
def test_a_search_finds_what_is_near_the_best_of_all(seed: int) -> None:
    own = job(6, 12, seed, memory=1.2e6, model=model_of(3, 5, heads=2), per_node=6)
    effort = Effort(pool=30, batches=2, held_out=2, shown=5, exhaustive=0)
    found = optimize(own, schedule, OPTIONS, effort)  # type: ignore[arg-type]
    oracle = min(prediction.mean for prediction in every(own, effort))
    assert oracle <= found.best.mean <= 1.01 * oracle
    assert found.simulated < found.layouts * len(STRATEGIES)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from([4, 8]), st.sampled_from([None, 1e6, 2e6]))
def test_never_slower_than_the_papers_choice_on_held_out_batches(seed: int, gpus: int, memory: float | None) -> None:
    own = job(gpus, 16, seed, memory=memory)
    effort = Effort(pool=8, batches=1, held_out=3, shown=3, exhaustive=0, seed=seed)
    ours = optimize(own, schedule, effort=effort)  # type: ignore[arg-type]
    theirs = optimize(own, schedule, effort=effort, mean_point=True)  # type: ignore[arg-type]
    assert ours.mean_point is not None
    assert ours.mean_point.makespans == theirs.best.makespans
    assert ours.best.mean <= theirs.best.mean
    for found in (ours, theirs):
        assert all(own.cluster.memory is None or one.memory <= own.cluster.memory for one in found.candidates)
    assert [one.mean for one in ours.candidates] == sorted(one.mean for one in ours.candidates)
    again = optimize(own, schedule, effort=effort)  # type: ignore[arg-type]
    assert again.candidates == ours.candidates


def test_a_placement_can_be_left_out() -> None:
    own = job(4, 8)
    for placement in (SEPARATED, DISAGGREGATED):
        found = optimize(own, schedule, Options((placement,)), Effort(pool=6, batches=1, held_out=1))  # type: ignore[arg-type]
        assert {one.layout.placement for one in found.candidates} == {placement}


def test_each_side_may_be_cut_by_what_divides_its_own_heads() -> None:
    own = job(4, 8, model=model_of(heads=4, language_heads=1))
    found = every(own, Effort(batches=1, held_out=1))
    sizes = {(one.layout.encoder.tensor, one.layout.backbone.tensor) for one in found}
    assert {encoder for encoder, _ in sizes} == {1, 2}
    assert {backbone for _, backbone in sizes} == {1}
    effort = Effort(batches=1, held_out=1, exhaustive=10_000)
    best = optimize(own, schedule, OPTIONS, effort).best  # type: ignore[arg-type]
    assert best.mean == min(one.mean for one in found)


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        LayoutError,
        match=r"on 2 GPUs fits: .* GB a GPU in the leanest layout, and each has 0.0001 GB",
    ):
        optimize(job(2, 8, memory=1e5), schedule)  # type: ignore[arg-type]


def test_the_papers_objective_is_its_formula() -> None:
    own = job(4, 8, memory=None)
    space, means = columns(own, Options()), closed.Means(own)
    found = closed.paper(own, means, space)
    for row in np.random.default_rng(0).choice(len(space), 12):
        layout = space.layout(int(row), (1, 1), "none")
        stage = {}
        for module, mesh in layout.meshes(own.model).items():
            samples = own.batch / layout.microbatches / mesh.data
            sizes = own.mean_point(module, samples)
            costs, layers = own.costs(mesh.tensor), len(own.model.module(module).layers)
            whole = costs.forward(module, 0, layers, sizes) + costs.backward(module, 0, layers, sizes)
            stage[module] = whole / mesh.pipeline
        if layout.placement == DISAGGREGATED:
            deep = layout.encoder.pipeline + layout.backbone.pipeline
            wanted = (layout.microbatches + deep - 1) * max(stage.values())
        else:
            wanted = (layout.microbatches + layout.backbone.pipeline - 1) * sum(stage.values())
        # Between the points of a curve it is a straight line.
        assert found[row] == pytest.approx(wanted, rel=0.05)
