"""DIPModule: layers, model and partition must agree; each rank builds its own chunks only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ds_dip.models.partition import Chunk, Partition
from ds_dip.runtime import DIPModule
from tests.cases import random_case
from tests.toy import Toy, loss_sum


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    """A process group of one: PipelineModule asks for its rank."""
    import deepspeed
    from deepspeed import comm as dist

    before = dict(os.environ)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29618")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    yield
    dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


def build(toy: Toy, partition: Partition, **changes: Any) -> DIPModule:
    layers = {name: list(chain) for name, chain in toy.factories.items()}
    return DIPModule(toy.model, partition, {**layers, **changes}, loss_sum)


def test_every_layer_is_built_once_and_in_order() -> None:
    case = random_case(1, ranks=1, encoders=2, layers=4)
    module = build(case.toy, case.partition)
    for chunk in module.local_chunks:
        assert list(module.layers_of(chunk)) == list(range(chunk.start, chunk.stop))
    built = [type(layer).__name__ for chunk in module.local_chunks for layer in module.layers_of(chunk).values()]
    assert built == ["Load", "Mix", "Mix", "Merge"] * 2 + ["Fuse", "Mix", "Mix", "Head"]
    assert len({id(p) for p in module.parameters()}) == len(list(module.parameters()))


def test_a_frozen_module_has_no_trainable_parameter() -> None:
    toy = Toy(3, encoders=1, layers=3, frozen=["vision"])
    module = build(toy, random_case(3, ranks=1, encoders=1, layers=3, frozen=()).partition)
    for chunk in module.local_chunks:
        trainable = [p.requires_grad for layer in module.layers_of(chunk).values() for p in layer.parameters()]
        assert all(trainable) == any(trainable) == (chunk.module != "vision")


def test_a_missing_layer_is_refused_with_the_numbers() -> None:
    case = random_case(1, ranks=1, encoders=1, layers=4)
    with pytest.raises(ValueError, match="module 'vision': 3 layers to build, the model describes 4"):
        build(case.toy, case.partition, vision=case.toy.factories["vision"][:3])


def test_a_partition_of_another_model_is_refused() -> None:
    case = random_case(1, ranks=1, encoders=0, layers=4)
    short = Partition(1, (Chunk("language", 0, 0, 0, 0, 3),), ())
    with pytest.raises(ValueError, match="chunks end at layers \\[3\\], expected a chain over layers 0 to 4"):
        build(case.toy, short)


def test_a_partition_for_more_ranks_than_the_topology_has_is_refused() -> None:
    from deepspeed.runtime.pipe.topology import PipeDataParallelTopology

    case = random_case(1, ranks=2, encoders=0, layers=4)
    with pytest.raises(ValueError, match="the partition is for 2 pipeline ranks, the topology has 1"):
        DIPModule(
            case.toy.model,
            case.partition,
            case.toy.factories,
            loss_sum,
            topology=PipeDataParallelTopology(num_pp=1, num_dp=1),
        )


def test_recomputed_activations_give_the_same_gradients() -> None:
    case = random_case(8, ranks=1, encoders=0, layers=4)
    chunk = case.partition.of("language")[0]
    gradients = []
    for interval in (0, 2):
        torch.manual_seed(0)
        module = build(case.toy, case.partition)
        module.activation_checkpoint_interval = interval
        microbatch = case.batches[0].microbatches[0]
        from ds_dip.models.context import Context

        fields = case.dataset.tensors(microbatch.samples, ["text", "slots", "labels"], torch.float32)
        x: Any = {}
        for local in case.partition.of("language"):
            x = module(local, x, Context(microbatch.sizes["language"], fields))
        loss_sum(x, Context(microbatch.sizes["language"], fields)).backward()
        gradients.append([p.grad.clone() for layer in module.layers_of(chunk).values() for p in layer.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
