"""A twin's layers give what the specs say, and gradients reach every weight and input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ds_dip.models import Context, load_model
from ds_dip.models.spec import Layer, Sizes, TensorSpec
from ds_dip.partition import make_partition
from ds_dip.rehearsal.layers import EmulatedLayer, Passing, emulated_factories, emulated_loss
from ds_dip.rehearsal.twin import twin_of

CONFIGS = Path(__file__).resolve().parent.parent / "model_configs"
SIZES = Sizes((5, 7, 3), (1, 2, 1))
CONTEXT = Context(SIZES, {})


def built(name: str, ranks: int, laps: dict[str, int]) -> tuple[Any, Any, dict[str, list[nn.Module]]]:
    model = load_model(CONFIGS / f"{name}.json")
    twin, partition = twin_of(model, "bfloat16"), make_partition(model, ranks, laps)
    layers = {module: [make() for make in own] for module, own in emulated_factories(twin, partition).items()}
    return twin, partition, layers


@pytest.mark.parametrize("name", ["quickstart", "vlm_s", "vlm_l"])
def test_every_chunk_gives_its_shapes_and_trains(name: str) -> None:
    twin, partition, layers = built(name, 2, {"language": 2})
    outputs: dict[str, Any] = {}
    for module in twin.modules:
        x: Any = {source: outputs[source] for source in twin.upstream(module.name)}
        for chunk in partition.of(module.name):
            for layer in layers[module.name][chunk.start : chunk.stop]:
                x = layer(x, CONTEXT)
            (spec,) = module.layers[chunk.stop - 1].output
            assert x.shape == spec.shape(SIZES)
            assert x.requires_grad
        outputs[module.name] = x
    emulated_loss(outputs[twin.loss_module], CONTEXT).backward()
    for own in layers.values():
        for layer in own:
            assert all(parameter.grad is not None for parameter in layer.parameters())
    # One weight a chunk, however large the model is.
    weights = sum(parameter.numel() for own in layers.values() for layer in own for parameter in layer.parameters())
    assert weights == len(partition.chunks)


def test_a_boundary_of_several_tensors() -> None:
    layer = EmulatedLayer(
        Layer("emulated", (TensorSpec(("instances", 1), "int64"), TensorSpec(("instances", 1))), (), {})
    )
    x = (torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1, requires_grad=True))
    whole, real = layer(x, CONTEXT)
    assert (whole.dtype, whole.shape, real.shape) == (torch.int64, (3, 1), (3, 1))
    emulated_loss((whole, real), CONTEXT).backward()
    assert x[1].grad is not None


def test_no_instance_upstream_is_no_nan() -> None:
    layer = EmulatedLayer(Layer("emulated", (TensorSpec(("instances", 1)),), (), {}))
    assert torch.isfinite(layer({"vision": torch.zeros(0, 1)}, CONTEXT)).all()


def test_a_layer_inside_of_a_chunk_hands_on() -> None:
    x = torch.ones(2, 1)
    assert Passing()(x, CONTEXT) is x
