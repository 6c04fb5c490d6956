"""The paper's models in their setups."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.data import SampleMetadata
from ds_dip.reproduction import contenders
from ds_dip.reproduction.cases import END_TO_END, MODELS, Case, Effort, evened, make_case

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "model_configs", ROOT / "profiling" / "devices"
SMALL = Effort(microbatches=4, batches=1, evaluations=20, partition_evaluations=1, most_laps=2)


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case("VLM-S", SMALL, *FOLDERS)


def test_every_model_has_a_case_of_the_papers_size() -> None:
    devices = {name: make_case(name, SMALL, *FOLDERS, _device(name)).setup.devices for name in MODELS}
    assert {name: devices[name] for name in END_TO_END} == {
        "VLM-S": 16, "VLM-M": 32, "VLM-L": 64, "T2V-S": 16, "T2V-L": 64
    }  # fmt: skip
    assert (devices["VLM-XL"], devices["T2V-XL"]) == (8192, 3072)
    assert make_case("VLM-XL", SMALL, *FOLDERS, "h100", ranks=16).setup.devices == 16384


def _device(name: str) -> str:
    return "h100" if name.endswith("XL") else "h800"


def test_a_device_without_a_setup_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vlm_m.json has no setup on a100: add one"):
        make_case("VLM-M", SMALL, *FOLDERS, "a100")


def test_modules_strategies_are_those_of_their_stages(case: Case) -> None:
    partition = contenders.rule(case)
    (problem,) = case.problems(partition, {"vision": "full", "language": "none"})
    (free,) = case.problems(partition)
    tasks = {task.id: task for task in problem.tasks}
    for pair in free.pairs:
        wanted = pair.choices[2 if tasks[pair.forward].module == "vision" else 0]
        assert tasks[pair.forward].acquire == wanted.memory
        assert tasks[pair.backward].duration == wanted.backward_duration


def test_unevenness_is_that_of_the_microbatches(case: Case) -> None:
    alike = replace(case.scorer.workload, batches=((case.scorer.workload.batches[0][0],) * 4,))
    scorer = copy(case.scorer)
    scorer.workload = alike
    assert replace(case, scorer=scorer).unevenness == 1
    assert case.unevenness > 1


def test_other_batches_and_limits_leave_the_case_as_it_is(case: Case) -> None:
    batch = case.scorer.workload.batches[0]
    partition = contenders.rule(case)
    plain = case.problems(partition)
    half = case.on([batch[:2]])
    assert max(task.microbatch for task in half.problems(partition)[0].tasks) == 1
    tight = case.within([1e9] * 4).problems(partition)[0]
    assert tight.memory_capacity == (1e9,) * 4
    assert tight.tasks == plain[0].tasks
    assert case.problems(partition) == plain


def test_a_calibrated_device_computes_faster_and_sends_as_before(case: Case) -> None:
    twice, free = (make_case("VLM-S", SMALL, *FOLDERS, **how) for how in ({"factor": 2.0}, {"collectives": False}))
    partition = contenders.rule(case)
    plain, fast, quiet = (own.problems(partition)[0] for own in (case, twice, free))
    assert plain.edges == fast.edges == quiet.edges
    for one, other in ((fast, plain), (quiet, plain)):
        shorter = [a.duration < b.duration for a, b in zip(one.tasks, other.tasks, strict=True)]
        assert all(shorter)


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20), st.floats(1.0, 50.0))
def test_no_larger_set_of_samples_is_as_even(seconds: list[float], most: float) -> None:
    samples = [SampleMetadata(str(number), {}, 1) for number in range(len(seconds))]
    kept = [int(own.id) for own in evened(samples, seconds, most)]
    assert kept == sorted(kept)
    assert max(seconds[own] for own in kept) <= most * min(seconds[own] for own in kept)
    # A set that is even lies between its least and most times as much.
    assert len(kept) == max(sum(low <= own <= most * low for own in seconds) for low in seconds)


def test_an_even_case_is_as_even_as_asked_for() -> None:
    effort = replace(SMALL, microbatches=64)
    assert make_case("VLM-S", effort, *FOLDERS).unevenness > 4.15
    assert 2 < make_case("VLM-S", effort, *FOLDERS, unevenness=4.15).unevenness <= 4.15
