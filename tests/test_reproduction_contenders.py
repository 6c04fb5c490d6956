"""Systems on a case: within memory, and never slower step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ds_dip.partition.scoring import UnfitError
from ds_dip.reproduction import contenders
from ds_dip.reproduction.cases import Case, Effort, make_case
from ds_dip.scheduling import interleave, interleaved_1f1b, one_f_one_b, retime

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "model_configs", ROOT / "profiling" / "devices"
SMALL = Effort(microbatches=4, batches=1, evaluations=20, partition_evaluations=1, most_laps=2)


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case("VLM-S", SMALL, *FOLDERS)


def test_schedules_stay_within_memory_and_outcomes_are_their_makespans(case: Case) -> None:
    partition = contenders.rule(case)
    for order in (interleaved_1f1b, one_f_one_b, interleave):
        found = contenders.ordered(case, partition, order, "")
        problems = case.problems(partition, found.chosen)
        for problem, schedule, seconds in zip(problems, found.schedules, found.outcome.seconds, strict=True):
            timeline = retime(problem, schedule)
            assert timeline.makespan == seconds
            for peak, capacity in zip(timeline.peak_memory, problem.memory_capacity, strict=True):
                assert capacity is not None
                assert peak <= capacity


def test_each_later_step_is_never_slower(case: Case) -> None:
    partition = contenders.rule(case)
    first = contenders.ordered(case, partition, interleave, "")
    second = contenders.reordered(case, partition, "")
    third = contenders.mixed(case, partition, second, "")
    assert first.outcome.mean >= second.outcome.mean >= third.mean
    assert third.gap is not None
    assert third.gap >= 0


def test_without_a_limit_nothing_is_computed_again() -> None:
    case = make_case("VLM-S", SMALL, *FOLDERS, limited=False)
    assert contenders.megatron(case).strategy == "vision none, language none"


def test_what_does_not_fit_is_refused_with_a_reason(case: Case) -> None:
    scorer = case.scorer.by(lambda problem: ("", interleave(problem), retime(problem, interleave(problem))))
    scorer.memory = replace(scorer.memory, bytes=5e9)
    with pytest.raises(UnfitError, match="leaves nothing of 5 GB for activations"):
        contenders.megatron(replace(case, scorer=scorer))
