"""A recorded run's plans, step by step: the same on every rank, and refused where the run is another one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds_dip.costs.corrections import Corrections, Fit
from ds_dip.models.spec import Layer, Module
from ds_dip.partition import make_partition
from ds_dip.planner import FollowerSource, MemoryChannel, Planner, PlannerSettings, PlanSourceError, StepPlan
from ds_dip.planner.record import seal
from ds_dip.planner.recording import Recording
from ds_dip.planner.replaying import ReplayError, ReplayingSource, check_recording, difference
from ds_dip.programs.program import PostSend
from tests.planner_cases import LAYER, MODEL, Samples, settings
from tests.recording_cases import PLANNER, RUN, record, run_of, scaled

PATIENCE = 60.0


@pytest.fixture
def plans() -> list[StepPlan]:
    """What no planner gives by itself: made by corrections, and a fallback among them."""
    planner = Planner(settings())
    planner.corrections = Corrections((Fit("vision", "F", 9.0, 0.002), Fit("language", "B", 0.3, 0.0)))
    return [planner.plan(0), planner.fallback(1, "the plan of step 1 was not there"), planner.plan(2)]


def test_all_ranks_run_the_recorded_plans(tmp_path: Path, plans: list[StepPlan]) -> None:
    channel, recording = MemoryChannel(), Recording(record(tmp_path, *map(scaled, plans)))
    leader = ReplayingSource(Planner(settings()), recording, channel)
    follower = FollowerSource(settings(), channel, deadline_s=PATIENCE)
    with ThreadPoolExecutor(2) as pool:
        for step, plan in enumerate(plans):
            found = [pool.submit(source.next, step) for source in (leader, follower)]
            assert [future.result(PATIENCE) for future in found] == [plan, plan]
            leader.measured(scaled(plan, 5.0))
        statistics = leader.statistics()
        assert (statistics.steps, statistics.planned, statistics.fallbacks) == (3, 2, {"recorded": 1})
        assert statistics.reasons == ("step 1: the plan of step 1 was not there",)
        found = [pool.submit(source.next, 3) for source in (leader, follower)]
        sentences = set()
        for future in found:
            with pytest.raises(PlanSourceError, match="holds no step 3, the recording ends with step 2") as error:
                future.result(PATIENCE)
            sentences.add(str(error.value))
        assert len(sentences) == 1


def test_a_run_may_be_set_back_and_evaluate(tmp_path: Path, plans: list[StepPlan]) -> None:
    leader = ReplayingSource(Planner(settings()), Recording(record(tmp_path, *map(scaled, plans))))
    leader.next(2)
    samples = [Samples().metadata(index) for index in range(6)]
    assert leader.evaluation(samples) == PLANNER.evaluation(0, samples)
    leader.resume(None)
    assert leader.next(0) == plans[0]


OTHER_MODEL = replace(MODEL, modules=(Module("vision", (LAYER,) * 5), MODEL.modules[1]))
WIDER = Layer("mine", LAYER.output, options={"flops_per_token": 2})


@pytest.mark.parametrize(
    ("here", "sentence"),
    [
        (settings(batch_size=4), "batch size 8, and this run has 4"),
        (settings(seed=1), "seed 0, and this run has 1"),
        (settings(microbatches=2), "microbatches 4, and this run has 2"),
        (settings(replicas=2), "replicas 1, and this run has 2"),
        (settings(loss="samples"), "loss tokens, and this run has samples"),
        (settings(partition=make_partition(MODEL, 1, {}, {"vision": 3})), "partition on ranks 2, and this run has 1"),
        (settings(partition=make_partition(MODEL, 2, {}, {"vision": 3})), "the partition [0-9a-f]{12}, and"),
        (settings(partition=make_partition(MODEL, 2, {"language": 2}, {"vision": 2})), "sub-microbatches {'vision': 3"),
        (
            settings(model=OTHER_MODEL, partition=make_partition(OTHER_MODEL, 2, {"language": 2}, {"vision": 3})),
            r"model small \([0-9a-f]{12}\), and this run has small",
        ),
        (
            settings(rates=replace(RUN.settings.rates, compute="bfloat16")),
            "data type float32, and this run has bfloat16",
        ),
    ],
    ids=lambda value: "" if isinstance(value, PlannerSettings) else None,
)
def test_another_run_is_refused(tmp_path: Path, here: PlannerSettings, sentence: str) -> None:
    recording = Recording(record(tmp_path, scaled(PLANNER.plan(0))))
    with pytest.raises(ReplayError, match=f"was recorded with (a )?{sentence}.*give the run what was recorded"):
        check_recording(recording, here, 40)
    with pytest.raises(PlanSourceError, match=sentence):
        ReplayingSource(Planner(here), recording).next(0)


def test_another_datasets_length_is_refused() -> None:
    assert "a dataset of length 40, and this run has 41" in str(difference(RUN, PLANNER.settings, 41))
    assert difference(RUN, PLANNER.settings, 40) is None


@pytest.mark.parametrize("change", [{"schedule": "1f1b"}, {"evaluations": 0}, {"link_depth": 1}, {"ahead": 9}])
def test_how_plans_were_made_does_not_matter(change: Any) -> None:
    assert difference(RUN, settings(**change), 40) is None


def test_a_run_whose_batch_size_changed_is_known_by_any_of_its_steps(tmp_path: Path) -> None:
    record(tmp_path, scaled(PLANNER.plan(0)))
    smaller = settings(batch_size=4)
    recording = Recording(record(tmp_path, scaled(Planner(smaller).plan(1)), run=run_of(smaller)))
    check_recording(recording, PLANNER.settings, 40)
    check_recording(recording, smaller, 40)
    first, second = (ReplayingSource(Planner(of), recording) for of in (PLANNER.settings, smaller))
    assert first.next(0) == PLANNER.plan(0)
    assert second.next(1) == Planner(smaller).plan(1)
    with pytest.raises(PlanSourceError, match="batch size 4, and this run has 8"):
        first.next(1)


class Changed(Samples):
    """The same ids, and another length of every text."""

    def metadata(self, index: int) -> Any:
        sample = super().metadata(index)
        text = sample.modules["language"][0] + 1
        return replace(sample, modules={**sample.modules, "language": (text,)})


def test_samples_of_other_sizes_are_refused(tmp_path: Path) -> None:
    recording = Recording(record(tmp_path, scaled(PLANNER.plan(0))))
    with pytest.raises(PlanSourceError, match="sample 's[0-9]+' has other sizes than were recorded"):
        ReplayingSource(Planner(settings(), Changed()), recording).next(0)


def test_programs_that_would_hang_are_refused(tmp_path: Path, plans: list[StepPlan]) -> None:
    first, *others = plans[0].programs
    sends = [i for i in first.instructions if isinstance(i, PostSend)]
    without = replace(first, instructions=tuple(i for i in first.instructions if i is not sends[0]))
    broken = seal(replace(plans[0], programs=(without, *others)))
    leader = ReplayingSource(Planner(settings()), Recording(record(tmp_path, scaled(broken))))
    with pytest.raises(PlanSourceError, match="step 0 cannot be planned: the plan's programs could not run"):
        leader.next(0)


def test_a_plan_beyond_this_runs_memory_is_refused(tmp_path: Path, plans: list[StepPlan]) -> None:
    recording, most = Recording(record(tmp_path, *map(scaled, plans))), max(plans[0].peak_memory)
    tight = ReplayingSource(Planner(settings(memory_capacity=(most / 2, None))), recording)
    with pytest.raises(PlanSourceError, match=r"step 0 was recorded with .* GB of activations on rank 0, and dip.mem"):
        tight.next(0)
    roomy = ReplayingSource(Planner(settings(memory_capacity=(most, most))), recording)
    assert roomy.next(0) == plans[0]
    assert roomy.statistics().hits == 1
