"""Diffusion transformers: packed clips are clips alone, and whatever the plan the gradient is that of one process."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_dip.data.clips import PackedClips
from ds_dip.models import Context, flow_matching_loss, layer_factories, parse_model
from ds_dip.models.diffusion import gated
from ds_dip.models.kinds import Width, diffusion_block
from ds_dip.models.packing import cross_attention
from ds_dip.models.parameters import parameters
from ds_dip.models.spec import Model, Sizes
from ds_dip.planning.batch import Batch
from ds_dip.planning.build import build_problem
from ds_dip.planning.cut import cut
from ds_dip.planning.split import split
from ds_dip.programs import compile_programs
from ds_dip.runtime.executor import Executor
from ds_dip.runtime.transport import MemoryLinks
from ds_dip.runtime.weights import let_put_off
from tests.cases import RandomCosts, random_order, random_partition
from tests.test_executor import Compute, dtype_of, largest_error, loaded

CONFIG = Path(__file__).parent.parent / "model_configs" / "t2v_s.json"
DATA = PackedClips(9, clips=2, context=260, frame=4, numbers=12, vocabulary=50, seed=3)


def tiny(layers: int = 3) -> Model:
    document = json.loads(CONFIG.read_text())
    for module in document["modules"]:
        module |= {"layers": layers, "hidden": 12, "heads": 3, "kv_heads": 3, "ffn": 20}
    document["modules"][0] |= {"hidden": 8, "heads": 2, "kv_heads": 1, "vocabulary": 50}
    document["modules"][1] |= {"patch": 2, "channels": 3, "side": 2}
    return parse_model(document)


def built(model: Model) -> dict[str, list[torch.nn.Module]]:
    return {name: [make().double() for make in chain] for name, chain in layer_factories(model, 1).items()}


class Flow(Compute):
    """Runs chunks with plain autograd, under the loss of diffusion."""

    def loss(self, output: Any, context: Any) -> torch.Tensor:
        return flow_matching_loss(output, context)


def whole(layers: dict[str, list[torch.nn.Module]], model: Model, samples: list[Any], step: int, count: int) -> float:
    """The whole global batch at once in this process: the loss, and gradients in ``layers``."""
    outputs: dict[str, Any] = {}
    for module in model.modules:
        tokens = tuple(size for sample in samples for size in sample.modules[module.name])
        sizes = Sizes(tokens, tuple(size for sample in samples for size in sample.merged[module.name]))
        names = tuple(f"{s.id}/{n}" for s in samples for n in range(len(s.modules[module.name])))
        field = "tokens" if module.name == "text" else "latents"
        arrays = [torch.from_numpy(a) for s in samples for a in DATA.load(s.id, [field])[field]]
        context = Context(sizes, {field: torch.cat(arrays)}, names, step)
        x: Any = {name: outputs[name] for name in model.upstream(module.name)}
        for layer in layers[module.name]:
            x = layer(x, context)
        outputs[module.name] = x
    loss = flow_matching_loss(outputs["video"], context) / count
    loss.backward()
    return float(loss.detach())


def pipelined(layers: dict[str, list[torch.nn.Module]], model: Model, partition: Any, batch: Batch, seed: int) -> float:
    """The same by ranks in threads, in a random valid order; every third time weight gradients are put off."""
    problem, rng = build_problem(batch, model, partition, RandomCosts(seed), compute="float64"), random.Random(seed)
    if seed % 3 == 0:
        problem, _ = split(problem, {task.id: rng.random() for task in problem.tasks}, 0.1)
        for layer in (layer for chain in layers.values() for layer in chain):
            let_put_off(layer)
    plan = random_order(problem, rng)
    programs = compile_programs(plan.problem, plan.order, plan.start, plan.end, batch, model, partition, link_depth=2)
    links = MemoryLinks(20.0)

    def load(microbatch: Any, module: str, fields: Any, start: int, stop: int) -> dict:
        return loaded(DATA, microbatch, module, fields, start, stop)  # type: ignore[arg-type]

    def work(rank: int) -> Executor:
        compute, device = Flow(layers, batch.loss_count), torch.device("cpu")
        own = Executor(model, partition, compute, links.transport(rank), load, device=device, dtype=dtype_of)
        own.begin(programs[rank], batch, train=True)
        for instruction in programs[rank].instructions:
            own.execute(instruction)
        own.finish()
        return own

    with ThreadPoolExecutor(partition.ranks) as pool:
        ranks = [future.result(timeout=60) for future in [pool.submit(work, rank) for rank in range(partition.ranks)]]
    return sum(float(own.loss_sum) for own in ranks if own.loss_sum is not None) / batch.loss_count


@pytest.mark.parametrize("seed", range(12))
def test_gradients_are_those_of_one_process(seed: int) -> None:
    model, rng = tiny(), random.Random(seed)
    ranks = 1 + seed % 3
    laps = {"text": 1, "video": 1 + seed % 2 * (ranks < 3)}
    partition = random_partition(model, ranks, laps, rng)
    samples = [DATA.metadata(index) for index in rng.sample(range(9), 5)]
    batch = cut(4, samples, [(0,), (1, 2), (3, 4)], model, partition)
    layers, wanted = built(model), built(model)
    loss = pipelined(layers, model, partition, batch, seed)
    expected = whole(wanted, model, samples, 4, batch.loss_count)
    assert loss == pytest.approx(expected, rel=1e-10)
    assert largest_error(layers, wanted) <= 1e-10
    assert all(p.grad is None for layer in layers["text"] for p in layer.parameters())
    assert all(p.grad is not None for layer in layers["video"] for p in layer.parameters())


def test_parameters_are_those_of_the_layers_that_are_built() -> None:
    model = tiny()
    for module in model.modules:
        for layer, own in zip(model.module(module.name).layers, built(model)[module.name], strict=True):
            assert parameters(layer) == sum(p.numel() for p in own.parameters()), layer.kind


def test_packed_clips_equal_every_clip_alone() -> None:
    layer = built(tiny())["video"][1]
    sizes = Sizes((8, 4, 8, 12), (3, 5, 3, 1))
    x = tuple(torch.randn(rows, width, dtype=torch.float64) for rows, width in ((32, 12), (12, 12), (4, 72)))
    packed = layer(x, Context(sizes, {}))[0]
    parts = zip(x[0].split(sizes.tokens), x[1].split(sizes.merged), x[2].split(1), strict=True)
    alone = [
        layer(part, Context(Sizes((own,), (text,)), {}))[0]
        for part, own, text in zip(parts, sizes.tokens, sizes.merged, strict=True)
    ]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=1e-12, atol=1e-12)


def test_selective_recomputation_gives_the_same_gradients() -> None:
    sizes, found = Sizes((8, 4), (3, 5)), []
    given = [torch.randn(rows, width, dtype=torch.float64) for rows, width in ((12, 12), (8, 12), (2, 72))]
    for selective in (False, True):
        layer = built(tiny())["video"][1]
        x = tuple(own.clone().requires_grad_() for own in given)
        layer(x, Context(sizes, {}, selective=selective))[0].square().sum().backward()
        found.append([own.grad for own in (*x, *layer.parameters())])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(again, plain, rtol=1e-12, atol=1e-12)


def test_cross_attention_is_the_textbooks_with_grouped_heads() -> None:
    sizes = Sizes((3, 2, 3), (4, 2, 0))
    query, key, value = (torch.randn(n, h, 4, dtype=torch.float64) for n, h in ((8, 4), (6, 2), (6, 2)))
    found = cross_attention(query, key, value, sizes)
    rows, others = query.split(sizes.tokens), zip(key.split(sizes.merged), value.split(sizes.merged), strict=True)
    for part, (k, v), got in zip(rows, others, found.split(sizes.tokens), strict=True):
        for head in range(4):
            scores = (part[:, head] @ k[:, head // 2].T / 2).softmax(-1)
            torch.testing.assert_close(
                got[:, head], scores @ v[:, head // 2] if len(k) else torch.zeros_like(got[:, head])
            )


def test_noise_depends_on_the_step_and_the_clip_alone() -> None:
    x = torch.randn(8, 12, dtype=torch.float64)
    context = Context(Sizes((4, 4), (1, 1)), {"latents": x}, ("a/0", "b/0"), 3, 5)
    zero = torch.zeros(8, 12, dtype=torch.float64)
    loss = flow_matching_loss(zero, context)
    back = Context(Sizes((4, 4), (1, 1)), {"latents": x.roll(4, 0)}, ("b/0", "a/0"), 3, 5)
    assert float(flow_matching_loss(zero, back)) == pytest.approx(float(loss), rel=1e-12)
    for other in (replace(context, step=4), replace(context, seed=6), replace(context, instances=("a/0", "c/0"))):
        assert float(flow_matching_loss(zero, other)) != pytest.approx(float(loss), rel=1e-9)


def test_a_tiny_model_learns() -> None:
    model = tiny()
    layers, samples = built(model), [DATA.metadata(index) for index in range(3)]
    trained = [p for layer in layers["video"] for p in layer.parameters()]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        losses.append(whole(layers, model, samples, 0, sum(sample.loss_tokens for sample in samples)))
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


def test_clips_and_texts_that_do_not_fit_are_refused() -> None:
    layer = built(tiny())["video"][0]
    text = torch.zeros(2, 8, dtype=torch.float64)
    for sizes, words in ((Sizes((6,), (2,)), "whole frames of 2 x 2"), (Sizes((4,), (3,)), "gave 2 rows")):
        latents = torch.zeros(sum(sizes.tokens), 12, dtype=torch.float64)
        with pytest.raises(ValueError, match=words):
            layer({"text": text}, Context(sizes, {"latents": latents}, ("a/0",)))


def test_rows_are_multiplied_by_the_gate_of_their_clip() -> None:
    for sizes in ((3, 0, 2), (), (4,)):
        x = torch.randn(sum(sizes), 3, dtype=torch.float64, requires_grad=True)
        gates = torch.randn(len(sizes), 3, dtype=torch.float64, requires_grad=True)
        each = zip(x.split(sizes), gates, strict=True) if sizes else ()
        expected = torch.cat([x[:0], *(rows * gate for rows, gate in each)])
        torch.testing.assert_close(gated(x, gates, sizes), expected, rtol=0, atol=0)
        assert torch.autograd.gradcheck(lambda x, gates, sizes=sizes: gated(x, gates, sizes), (x, gates))


def test_a_block_starts_with_open_gates() -> None:
    block = built(tiny())["video"][1]
    assert block.table[2].tolist() == block.table[5].tolist() == [1.0] * 12
    assert diffusion_block(Width(12, 3, 3, 4, 20, False), 3).output[2].dims == ("instances", 72)
