"""What tables are compared by."""

from __future__ import annotations

import pytest

from ds_dip.reproduction.ablation import ABLATE, ON_H20
from ds_dip.reproduction.calibration import KEY as CALIBRATION
from ds_dip.reproduction.ends import ENDS
from ds_dip.reproduction.experiment import Result, Row
from ds_dip.reproduction.systems import BASELINES, OURS


def rows(group: str, **seconds: float | None) -> Result:
    return Result(tuple(Row(group, name, name, own) for name, own in seconds.items()))


def test_comparisons_take_what_the_paper_compares() -> None:
    table = rows("VLM-S", fsdp=3.0, megatron=6.0, static=4.0, optimus=5.0, exposed=4.5, balanced=9.0, ours=2.0)
    least, most, *none = ENDS.compare({"end-to-end-vlm-s": table})
    assert (least.ours, most.ours) == (1.5, 3)
    assert (least.where, most.where) == (f"VLM-S over {BASELINES['fsdp'][0]}", f"VLM-S over {BASELINES['megatron'][0]}")
    assert ("fsdp" in least.assumptions, "fsdp" in most.assumptions) == (True, False)
    assert least.changed == {"fsdp": 2.25}
    assert [own.ours for own in none] == [None, None]


def test_changed_assumptions_are_those_that_were_run() -> None:
    table = rows("VLM-S", fsdp=3.0, megatron=6.0, static=4.0, optimus=5.0, exposed=4.5, ours=2.0)
    found = ENDS.compare(
        {
            "end-to-end-vlm-s": table,
            "unlimited-vlm-s": rows("free", megatron=5.0, rule=2.0),
            "collectives-vlm-s": rows("quiet", rule=1.0),
        }
    )
    assert found[0].changed == {"fsdp": 2.25, "collectives": 3.0}
    assert found[1].changed == {"memory": 2.5}


def test_seconds_are_compared_where_there_is_a_calibration() -> None:
    own = rows("VLM-S", megatron=6.0, partitioner=5.0, interleaving=4.0, reordering=3.0, memory=2.0)
    free = rows("free", megatron=3.0, partitioner=2.0, interleaving=None, reordering=1.0, memory=1.0)
    speeds = ABLATE.compare({"ablation": own, "ablation-memory": free})
    assert [comparison.ours for comparison in speeds] == pytest.approx([1.2, 1.5, 2.0, 3.0])
    assert [dict(comparison.changed) for comparison in speeds] == [
        {"memory": 1.5},
        {},
        {"memory": 3.0},
        {"memory": 3.0},
    ]
    both = ABLATE.compare({"ablation": own, CALIBRATION: Result()})
    assert [comparison.ours for comparison in both[4:]] == [5.0, 4.0, 3.0, 2.0]


def test_what_could_not_run_is_not_compared() -> None:
    table = rows("H20", fsdp=None, exposed=None, megatron=6.0, **{OURS: 2.0})
    fsdp, megatron = ON_H20.compare({"h20": table})
    assert (fsdp.ours, fsdp.agrees, dict(fsdp.changed)) == (None, False, {})
    assert megatron.ours == 3
