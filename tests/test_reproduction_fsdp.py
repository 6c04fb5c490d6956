"""FSDP as an analytic cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ds_dip.partition.scoring import UnfitError
from ds_dip.reproduction.cases import Case, Effort, make_case
from ds_dip.reproduction.fsdp import exposed, fsdp

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ROOT / "model_configs", ROOT / "profiling" / "devices"
SMALL = Effort(microbatches=4, batches=1, evaluations=20, partition_evaluations=1, most_laps=2)


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case("VLM-S", SMALL, *FOLDERS)


def test_fsdp_is_not_faster_than_its_devices_work(case: Case) -> None:
    alike = tuple(own[:1] * case.setup.devices for own in case.rounds)
    even, uneven = fsdp(replace(case, rounds=alike)), fsdp(case)
    assert uneven.mean > even.mean
    assert uneven.gap is None
    assert exposed(case).mean > uneven.mean
    slow = replace(case.device, links={"node": (1.0, 0.0), "network": (1.0, 0.0)})
    assert fsdp(replace(case, device=slow)).mean > 100 * uneven.mean


def test_what_does_not_fit_is_refused_with_a_reason(case: Case) -> None:
    tight = replace(case.device, memory_bytes=5e9)
    with pytest.raises(UnfitError, match=r"VLM-S, FSDP: a microbatch's activations exceed .* GB by every strategy"):
        fsdp(replace(case, device=tight))
