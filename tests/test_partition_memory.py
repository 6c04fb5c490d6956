"""Memory of a rank: exact numbers of parameters, and what they, their gradients and optimizer state hold."""

from __future__ import annotations

import math

import pytest

from ds_dip.costs.parallel import TensorParallel
from ds_dip.models import load_model
from ds_dip.models.parameters import parameters
from ds_dip.models.spec import Layer, Model, Module, TensorSpec
from ds_dip.partition import make_partition
from ds_dip.partition.memory import Memory
from tests.partition_cases import CONFIGS, QUICKSTART


def test_parameters_are_those_of_the_layers_that_are_built() -> None:
    from ds_dip.models import layer_factories

    factories = layer_factories(QUICKSTART, 0)
    for module in QUICKSTART.modules:
        for layer, factory in zip(module.layers, factories[module.name], strict=True):
            assert parameters(layer) == sum(own.numel() for own in factory().parameters()), (module.name, layer.kind)


@pytest.mark.parametrize(
    ("config", "vision", "language"),
    [("vlm_s", 4.4e9, 8.03e9), ("vlm_m", 4.4e9, 32.5e9), ("vlm_l", 22.6e9, 72.7e9)],
)
def test_the_papers_models_have_the_sizes_they_are_called_by(config: str, vision: float, language: float) -> None:
    model = load_model(CONFIGS / f"{config}.json")
    for name, expected in (("vision", vision), ("language", language)):
        assert sum(map(parameters, model.module(name).layers)) == pytest.approx(expected, rel=0.05)


def test_a_layer_of_another_kind_tells_its_weights() -> None:
    output = (TensorSpec(("tokens", 6)),)
    assert parameters(Layer("mine", output, options={"weights": 10})) == 10
    assert parameters(Layer("mine", output)) == 36


@pytest.mark.parametrize(
    ("memory", "bytes_each"),
    [
        (Memory(), 4 + 4 + 8),
        (Memory(compute="bfloat16"), 2 + 4 + 12),
        (Memory(compute="bfloat16", replicas=4), 2 + 4 + 3),
    ],
)
def test_a_trained_parameter_has_a_gradient_and_a_share_of_the_optimizers_state(
    memory: Memory, bytes_each: float
) -> None:
    partition = make_partition(QUICKSTART, 2)
    total = sum(parameters(layer) for module in QUICKSTART.modules for layer in module.layers)
    assert math.fsum(memory.state(QUICKSTART, partition)) == bytes_each * total


def test_a_frozen_parameter_is_only_held() -> None:
    layer = Layer("mine", (TensorSpec(("tokens", 2)),), options={"weights": 100})
    model = Model(
        "m", (Module("vision", (layer,), frozen=True), Module("language", (layer,))), (("vision", "language"),)
    )
    assert Memory().state(model, make_partition(model, 1)) == (100 * 4 + 100 * 16,)


def test_what_is_left_for_activations() -> None:
    memory = Memory(bytes=1000.0, link_depth=3, headroom=0.1)
    assert memory.activations(0, 500.0, 50.0) == 1000 * 0.9 - 500 - 3 * 50
    assert Memory().activations(0, 500.0, 50.0) is None
    assert Memory(limits=(5.0, None)).activations(0, 500.0, 50.0) == 5.0
    limited = Memory(bytes=1000.0, link_depth=3, headroom=0.1, limits=(100.0, 900.0))
    assert [limited.activations(rank, 500.0, 50.0) for rank in range(2)] == [100.0, 250.0]


def test_a_device_holds_its_share_of_a_rank() -> None:
    partition = make_partition(QUICKSTART, 2)
    whole, share = (Memory(compute="bfloat16", parallel=TensorParallel(degree)) for degree in (1, 2))
    each = [
        sum(
            parameters(layer, 2)
            for chunk in partition.on(rank)
            for layer in QUICKSTART.module(chunk.module).layers[chunk.start : chunk.stop]
        )
        for rank in range(2)
    ]
    assert share.state(QUICKSTART, partition) == tuple((2 + 4 + 12) * count for count in each)
    assert all(
        w / 2 < s < w
        for w, s in zip(whole.state(QUICKSTART, partition), share.state(QUICKSTART, partition), strict=True)
    )


def test_messages_are_cut_among_sequence_parallel_devices() -> None:
    for sequence, message in ((True, 25.0), (False, 50.0)):
        memory = Memory(bytes=1000.0, link_depth=3, headroom=0.0, parallel=TensorParallel(2, sequence))
        assert memory.activations(0, 500.0, 50.0) == 1000 - 500 - 3 * message
