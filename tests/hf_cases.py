"""Tiny random models of transformers with data, split by chunks and compared with the library's own forward."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from peft import inject_adapter_in_model
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from ds_dip.models.hf.split import Pretrained
from ds_dip.models.partition import Chunk, Partition
from ds_dip.planning.batch import Batch
from ds_dip.planning.build import build_problem
from ds_dip.planning.cut import cut
from ds_dip.planning.split import split
from ds_dip.programs import compile_programs
from ds_dip.runtime.executor import Executor
from ds_dip.runtime.transport import MemoryLinks
from ds_dip.runtime.weights import let_put_off
from tests.cases import RandomCosts, random_order, random_partition
from tests.hf_models import Sample, Samples, fitting
from tests.test_executor import dtype_of, loaded


def real_layers(pretrained: Pretrained, dtype: torch.dtype) -> dict[str, list[Any]]:
    """Every layer, built; those that share a module with another one share it here too."""
    shared: dict[str, nn.Module] = {}
    built: dict[str, list[Any]] = {}
    for name, factories in pretrained.layers.items():
        built[name] = []
        for factory in factories:
            if factory.shared is None:
                built[name].append(factory().to(dtype))
                continue
            module = shared.setdefault(factory.shared.key, factory().to(dtype))
            built[name].append(partial(factory.shared.call, module))
    return built


def module_of(layer: Any) -> nn.Module:
    return layer.args[0] if isinstance(layer, partial) else layer


class Autograd:
    """Runs chunks with plain autograd, under a loss."""

    def __init__(self, layers: Mapping[str, list[Any]], count: int, loss: Callable[..., torch.Tensor]) -> None:
        self.layers, self.count, self.sum = layers, count, loss

    def forward(self, chunk: Chunk, x: Any, context: Any) -> Any:
        for index, layer in enumerate(self.layers[chunk.module][chunk.start : chunk.stop], chunk.start):
            x = layer(x, replace(context, layer=f"{chunk.module}.{index}"))
        return x

    def loss(self, output: Any, context: Any) -> torch.Tensor:
        return self.sum(output, context)

    def backward(self, tensors: Any, gradients: Any) -> None:
        torch.autograd.backward(tensors, gradients)

    def backward_loss(self, loss: torch.Tensor) -> None:
        (loss / self.count).backward()

    def backward_weights(self, total: torch.Tensor) -> None:
        total.backward()


def pipelined(
    pretrained: Pretrained,
    layers: Mapping[str, list[Any]],
    partition: Any,
    batch: Batch,
    data: Samples,
    dtype: torch.dtype,
    seed: int,
) -> float:
    """The loss, and gradients in ``layers``, by ranks in threads in a random valid order; sometimes split backwards."""
    model, rng = pretrained.model, random.Random(seed)
    problem = build_problem(batch, model, partition, RandomCosts(seed), compute="float64")
    if seed % 3 == 0:
        problem, _ = split(problem, {task.id: rng.random() for task in problem.tasks}, 0.1)
        for chain in layers.values():
            for layer in chain:
                let_put_off(module_of(layer))
    plan = random_order(problem, rng)
    programs = compile_programs(plan.problem, plan.order, plan.start, plan.end, batch, model, partition, link_depth=2)
    links = MemoryLinks(20.0)

    def named(name: str) -> torch.dtype:
        return dtype if name == "compute" else dtype_of(name)

    def load(microbatch: Any, module: str, fields: Any, start: int, stop: int) -> dict:
        return loaded(data, microbatch, module, fields, start, stop)  # type: ignore[arg-type]

    def work(rank: int) -> Executor:
        compute, device = Autograd(layers, batch.loss_count, pretrained.loss), torch.device("cpu")
        own = Executor(model, partition, compute, links.transport(rank), load, device=device, dtype=named)
        own.begin(programs[rank], batch, train=True)
        for instruction in programs[rank].instructions:
            own.execute(instruction)
        own.finish()
        return own

    with ThreadPoolExecutor(partition.ranks) as pool:
        ranks = [future.result(timeout=60) for future in [pool.submit(work, rank) for rank in range(partition.ranks)]]
    return sum(float(own.loss_sum) for own in ranks if own.loss_sum is not None) / batch.loss_count


def library(model: Any, samples: Sequence[Sample], form: str = "alone") -> float:
    """The mean loss over all supervised tokens by the library's own forward, and gradients.

    Samples run each ``alone``, ``padded`` to the longest with an attention mask, or ``packed`` into one row with
    positions that begin anew.
    """
    count = sum(sample.metadata.loss_tokens for sample in samples)
    batches = {"alone": alone, "padded": padded, "packed": packed}[form](samples)
    total = 0.0
    for given in batches:
        labels = given.pop("labels")[:, 1:].flatten()
        given = {name: value.to(model.dtype) if value.is_floating_point() else value for name, value in given.items()}
        logits = model(**given, use_cache=False).logits[:, :-1].flatten(0, 1)
        loss = functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / count
        loss.backward()
        total += float(loss.detach())
    return total


#: What the library takes as rows of tokens, and what stands there for none.
ROWS = {"input_ids": 0, "labels": -100, "mm_token_type_ids": 0}


def alone(samples: Sequence[Sample]) -> list[dict[str, torch.Tensor]]:
    """Every sample as a batch."""
    return [
        {name: torch.from_numpy(value)[None] if name in ROWS else value for name, value in sample.library.items()}
        for sample in samples
    ]


def padded(samples: Sequence[Sample]) -> list[dict[str, torch.Tensor]]:
    """One batch with a row a sample."""
    given = {
        name: pad_sequence(
            [torch.from_numpy(sample.library[name]) for sample in samples], batch_first=True, padding_value=nothing
        )
        for name, nothing in ROWS.items()
        if name in samples[0].library
    }
    lengths = torch.tensor([len(sample.library["input_ids"]) for sample in samples])
    given["attention_mask"] = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    return [given | media(samples)]


def packed(samples: Sequence[Sample]) -> list[dict[str, torch.Tensor]]:
    """One batch with one row. The first label of a sample is not learned, since another sample stands before it."""
    given: dict[str, torch.Tensor] = {}
    for name in ROWS:
        if name in samples[0].library:
            rows = [torch.from_numpy(sample.library[name]).clone() for sample in samples]
            for row in rows if name == "labels" else ():
                row[0] = -100
            given[name] = torch.cat(rows)[None]
    places = torch.cat([torch.arange(len(sample.library["input_ids"])) for sample in samples])[None]
    if "positions" in samples[0].fields:  # of tokens in time, height and width, behind those that tell samples apart
        positions = torch.cat([torch.from_numpy(sample.fields["positions"][0]) for sample in samples])
        places = torch.cat([places, positions.t()])[:, None]
    return [given | media(samples) | {"position_ids": places}]


def media(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """All samples' media, one after the other; pictures of fewer tiles have empty ones behind them."""
    found: dict[str, torch.Tensor] = {}
    for name in {name: None for sample in samples for name in sample.library if name not in ROWS}:
        own = [sample.library[name] for sample in samples if name in sample.library]
        if own[0].ndim == 5:
            most = max(part.shape[1] for part in own)
            own = [functional.pad(part, (0, 0) * 3 + (0, most - part.shape[1])) for part in own]
        found[name] = torch.cat(own)
    return found


def errors(pretrained: Pretrained, layers: Mapping[str, list[Any]], model: Any) -> dict[str, float]:
    """``errors_of`` all modules."""
    return {k: v for name in layers for k, v in errors_of(pretrained, layers, name, model).items()}


def errors_of(pretrained: Pretrained, layers: Mapping[str, list[Any]], name: str, model: Any) -> dict[str, float]:
    """By the library's name of a module's weights: the largest difference of the gradient over the largest gradient."""
    found: dict[str, float] = {}
    for factory, layer in zip(pretrained.layers[name], layers[name], strict=True):
        module = module_of(layer)
        names = factory.names(module)
        for own, parameter in module.named_parameters():
            if not parameter.requires_grad:
                assert parameter.grad is None
                continue
            wanted = model.get_parameter(names[own]).grad
            got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            wanted = torch.zeros_like(parameter) if wanted is None else wanted
            found[names[own]] = distance(got, wanted, sibling(model, names[own]))
    return found


def sibling(model: Any, name: str) -> torch.Tensor | None:
    """The gradient of the keys' weights for the name of their biases, None for other names."""
    if not name.endswith(("k_proj.bias", "to_k.bias")):
        return None
    found: torch.Tensor | None = model.get_parameter(name.removesuffix("bias") + "weight").grad
    return found


def distance(found: torch.Tensor, wanted: torch.Tensor, sibling: torch.Tensor | None = None) -> float:
    """The largest difference over the largest gradient (absolute where there is no gradient to speak of).

    A softmax does not see what is added to all keys alike: biases of keys that are neither rotated nor normed have a
    gradient of 0, and what is found is rounding. It is held against the ``sibling``, the gradient of the keys' weights.
    """
    scale, error = float(wanted.abs().max()), float((found - wanted).abs().max())
    if sibling is not None and scale < 1e-6 * float(sibling.abs().max()):
        scale = float(sibling.abs().max())
    return error / scale if scale > 1e-9 else error


def copied(pretrained: Pretrained, layers: Mapping[str, list[Any]], model: Any) -> Any:
    """The library's model with the weights that peft added to the layers, and gradients of all."""
    model.requires_grad_(True)
    for name, chain in layers.items():
        for factory, layer in zip(pretrained.layers[name], chain, strict=True):
            module = module_of(layer)
            names = factory.names(module)
            for own, parameter in module.named_parameters():
                if "lora_" in own:
                    torch.nn.init.normal_(parameter, std=0.1)
                    model.get_parameter(names[own]).data.copy_(parameter)
    return model


def drawn_adapted(model: Any, lora: Any) -> Any:
    """The library's model with peft's layers, in place."""
    return inject_adapter_in_model(lora, model)


def placed(model: Any, ranks: int, laps: int, rng: random.Random) -> Partition:
    """Random bounds; a module of fewer layers than ranks lives on the first ones."""
    small = [m for m in model.modules if len(m.layers) < ranks]
    whole = replace(model, modules=tuple(m for m in model.modules if m not in small))
    most = {m.name: min(laps, len(m.layers) // ranks) for m in whole.modules}
    made = random_partition(whole, ranks, most, rng)
    chunks = []
    for module in model.modules:
        own = [Chunk(module.name, n, 0, n, n, n + 1) for n in range(len(module.layers))]
        chunks += own if module in small else made.of(module.name)
    limits = [(m.name, rng.choice((None, 1, 2))) for m in model.modules if not model.upstream(m.name)]
    return Partition(ranks, tuple(chunks), tuple(limits) if len(model.modules) > 1 else ())


def compare(
    model: Any, make: Callable[[int], Sample], chosen: Sequence[int], *, ranks: int, laps: int, seed: int,
    dtype: torch.dtype, frozen: Sequence[str] = (), reference: Any = None, form: str = "alone", **options: Any,
) -> tuple[float, float, dict[str, float]]:  # fmt: skip
    """(loss by the pipeline, loss by the library, errors of gradients) for samples in two or three microbatches."""
    from ds_dip.models.hf.split import from_transformers

    model = model.to(dtype)
    pretrained = from_transformers(model, frozen=frozen, dtype=dtype, **options)
    names = [module.name for module in pretrained.model.modules]
    data, rng = Samples(lambda index: fitting(make(index), names), max(chosen) + 1), random.Random(seed)
    partition = placed(pretrained.model, ranks, laps, rng)
    samples = [data.metadata(index) for index in chosen]
    half = len(chosen) // 2
    share = [tuple(range(half)), tuple(range(half, len(chosen)))]
    batch = cut(0, samples, share, pretrained.model, partition)
    layers = real_layers(pretrained, dtype)
    if reference is not None:
        model = copied(pretrained, layers, reference)
    loss = pipelined(pretrained, layers, partition, batch, data, dtype, seed)
    expected = library(model, [data.samples[index] for index in chosen], form)
    return loss, expected, errors(pretrained, layers, model)
