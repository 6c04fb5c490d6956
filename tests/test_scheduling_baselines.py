from __future__ import annotations

import pytest
from hypothesis import given, settings

from ds_dip.scheduling import (
    BASELINES,
    BaselineError,
    Problem,
    coarse_optimus,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    retime,
    verify,
    zb_h1,
)
from ds_dip.scheduling.instances import multimodal, pipeline, uniform
from tests.scheduling_cases import build, problems

GRID = [(ranks, microbatches) for ranks in (1, 2, 3, 4, 6) for microbatches in (1, 2, 3, 4, 5, 8, 12)]
LENGTHS = [(1.0, 2.0), (3.0, 3.0), (2.0, 1.0)]


@pytest.mark.parametrize(("ranks", "microbatches"), GRID)
def test_one_lap_takes_the_closed_form_and_keeps_the_known_peaks(ranks: int, microbatches: int) -> None:
    for forward, backward in LENGTHS:
        problem = uniform(ranks, 1, microbatches, forward, backward)
        closed = (microbatches + ranks - 1) * (forward + backward)
        for baseline in (gpipe, one_f_one_b, interleaved_1f1b):
            assert retime(problem, baseline(problem)).makespan == closed
        peaks = tuple(min(ranks - rank, microbatches) for rank in range(ranks))
        assert retime(problem, one_f_one_b(problem)).peak_memory == peaks


@pytest.mark.parametrize(("ranks", "microbatches"), [case for case in GRID if case[1] % case[0] == 0])
@pytest.mark.parametrize("laps", [2, 3])
def test_interleaving_laps_takes_the_closed_form_and_keeps_the_known_peaks(
    ranks: int, microbatches: int, laps: int
) -> None:
    for forward, backward in LENGTHS:
        problem = uniform(ranks, laps, microbatches, forward / laps, backward / laps)
        times = retime(problem, interleaved_1f1b(problem))
        closed = microbatches * (forward + backward) + (ranks - 1) * (forward + backward) / laps
        assert times.makespan == pytest.approx(closed)
        most = [min(microbatches * laps, 2 * (ranks - rank - 1) + (laps - 1) * ranks + 1) for rank in range(ranks)]
        assert list(times.peak_memory) == most


@pytest.mark.parametrize(("ranks", "microbatches"), [case for case in GRID if case[1] >= case[0]])
@pytest.mark.parametrize(("forward", "backward", "weight"), [(1, 1, 1), (2, 3, 1), (3, 3, 2)])
def test_zb_h1_takes_the_closed_form(ranks: int, microbatches: int, forward: int, backward: int, weight: int) -> None:
    rows = [[[float(length)] * microbatches] * ranks for length in (forward, backward, weight)]
    problem = pipeline(ranks, 1, microbatches, rows[0], rows[1], None, rows[2])
    closed = microbatches * (forward + backward + weight) + (ranks - 1) * (forward + backward - weight)
    assert retime(problem, zb_h1(problem)).makespan == closed


@pytest.mark.parametrize(("ranks", "microbatches", "best"), [(4, 5, 39), (4, 6, 45), (4, 10, 69), (8, 12, 93)])
def test_interleaving_takes_any_number_of_microbatches(ranks: int, microbatches: int, best: float) -> None:
    problem = uniform(ranks, 2, microbatches)
    assert retime(problem, interleaved_1f1b(problem)).makespan == best


@settings(max_examples=40, deadline=None)
@given(problems())
def test_every_baseline_holds_or_says_why_it_cannot_apply(problem: Problem) -> None:
    for baseline in BASELINES.values():
        try:
            schedule = baseline(problem)
        except BaselineError as error:
            said = str(error)
        else:
            said = "; ".join(verify(problem, schedule)) or "it holds, by the independent check"
        assert said.startswith("it holds") or " cannot apply: " in said


def test_microbatches_without_images_and_frozen_encoders_have_static_orders() -> None:
    for seed in range(10):
        problem = build(seed, ranks=3, microbatches=5, cap=None, frozen=True)
        assert verify(problem, one_f_one_b(problem)) == []


def test_interleaving_runs_an_encoder_before_its_backbone() -> None:
    problem = multimodal(4, 8, 1)
    schedule = interleaved_1f1b(problem)
    assert verify(problem, schedule) == []
    assert retime(problem, schedule).makespan < 1.1 * retime(problem, gpipe(problem)).makespan


def test_what_does_not_fit_into_memory_is_refused_with_numbers() -> None:
    with pytest.raises(BaselineError, match="GPipe cannot apply: needs 8 on rank 0, whose capacity is 4"):
        gpipe(uniform(4, 1, 8, cap=4))


def test_what_has_no_encoder_or_no_weight_gradients_is_refused() -> None:
    with pytest.raises(BaselineError, match="needs an encoder and a backbone"):
        coarse_optimus(uniform(2, 1, 2))
    with pytest.raises(BaselineError, match="needs weight-gradient tasks"):
        zb_h1(uniform(2, 1, 2))


def test_interleaving_on_ranks_with_different_numbers_of_chunks_is_refused() -> None:
    problem = uniform(2, 2, 2)
    moved = [
        task if task.chunk != 3 else type(task)(**{name: getattr(task, name) for name in task.__slots__} | {"rank": 0})
        for task in problem.tasks
    ]
    with pytest.raises(BaselineError, match="ranks hold 1 to 3 chunks"):
        interleaved_1f1b(Problem(2, (None, None), tuple(moved), problem.edges))
