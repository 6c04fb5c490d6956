"""The paper's models in their setups."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest

from ds_dip.reproduction import contenders
from ds_dip.reproduction.cases import MODELS, Case, Effort, make_case

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "model_configs", ROOT / "profiling" / "devices"
SMALL = Effort(microbatches=4, batches=1, evaluations=20, partition_evaluations=1, most_laps=2)


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case("VLM-S", SMALL, *FOLDERS)


def test_every_model_has_a_case_of_the_papers_size() -> None:
    devices = {name: make_case(name, SMALL, *FOLDERS).setup.devices for name in MODELS}
    assert devices == {"VLM-S": 16, "VLM-M": 32, "VLM-L": 64, "T2V-S": 16, "T2V-L": 64}


def test_a_device_without_a_setup_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vlm_m.json has no setup of one replica on a100: add one"):
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
