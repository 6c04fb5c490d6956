"""A twin has everything that plans depend on: the same stages, edges, delays and bytes, whatever its tensors hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.data.documents import PackedDocuments
from ds_dip.models import TensorSpec, load_model
from ds_dip.models.spec import Layer, Model, Module, Sizes
from ds_dip.partition import make_partition
from ds_dip.planner.plan import PlannerSettings
from ds_dip.planner.wire import SETTINGS
from ds_dip.planning import build_problem, cut
from ds_dip.rehearsal.twin import twin_of
from tests.planner_cases import settings

CONFIGS = Path(__file__).resolve().parent.parent / "model_configs"
SIZES = Sizes((12, 30), (3, 7))


@pytest.mark.parametrize("name", ["vlm_s", "vlm_l", "quickstart"])
def test_a_twin_counts_the_models_bytes_and_holds_a_number_an_instance(name: str) -> None:
    model = load_model(CONFIGS / f"{name}.json")
    twin = twin_of(model, "bfloat16")
    for real, small in zip(model.modules, twin.modules, strict=True):
        assert (small.name, small.frozen, len(small.layers)) == (real.name, real.frozen, len(real.layers))
        for layer, shrunk in zip(real.layers, small.layers, strict=True):
            (spec,), (own,) = layer.output, shrunk.output
            # Whatever the ranks run in, the bytes are those of the run that is emulated.
            assert own.bytes(SIZES, "float32") == spec.bytes(SIZES, "bfloat16")
            assert own.shape(SIZES) == (2, 1)
            assert shrunk.fields == ()


def test_other_data_types_are_kept() -> None:
    layer = Layer("mine", (TensorSpec(("tokens",), "int64"), TensorSpec(("tokens", 8))))
    (shrunk,) = twin_of(Model("m", (Module("language", (layer,)),)), "float16").modules[0].layers
    assert [spec.dtype for spec in shrunk.output] == ["int64", "compute"]
    assert [spec.bytes(SIZES, "float32") for spec in shrunk.output] == [8 * 42, 2 * 8 * 42]


def test_both_have_the_same_problem_under_the_same_costs() -> None:
    model = load_model(CONFIGS / "vlm_s.json")
    costs = Roofline(model, Rates(compute="bfloat16"))
    dataset = PackedDocuments(8)
    samples = [dataset.metadata(index) for index in range(8)]
    partition = make_partition(model, 4, {"vision": 2}, {"vision": 8})
    twin = twin_of(model, "bfloat16")
    share = [(0, 1), (2, 3, 4), (5,), (6, 7)]
    problems = [
        build_problem(cut(0, samples, share, one, partition), one, partition, costs, compute="bfloat16")
        for one in (model, twin)
    ]
    assert problems[0] == problems[1]


def test_a_twin_travels_to_the_planners_process() -> None:
    plain = settings()
    sent: PlannerSettings = replace(plain, model=twin_of(plain.model, "bfloat16"))
    assert SETTINGS.decode(SETTINGS.encode(sent)) == sent
