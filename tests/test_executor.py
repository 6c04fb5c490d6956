"""Whatever the plan, the executor's gradient is that of one process computing the whole batch (fp64, threads)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from ds_dip.models.partition import Chunk
from ds_dip.programs import compile_programs, decode, encode, replay
from ds_dip.runtime.executor import Executor, StageError
from ds_dip.runtime.transport import MemoryLinks
from ds_dip.runtime.weights import let_put_off
from tests.cases import Case, random_case
from tests.toy import ToyDataset, loss_sum


class Compute:
    """Runs chunks with plain autograd."""

    def __init__(self, layers: dict[str, list[torch.nn.Module]], count: int) -> None:
        self.layers, self.count = layers, count

    def forward(self, chunk: Chunk, x: Any, context: Any) -> Any:
        for index, layer in enumerate(self.layers[chunk.module][chunk.start : chunk.stop], chunk.start):
            x = layer(x, replace(context, layer=f"{chunk.module}.{index}"))
        return x

    def loss(self, output: Any, context: Any) -> torch.Tensor:
        return loss_sum(output, context)

    def backward(self, tensors: Any, gradients: Any) -> None:
        torch.autograd.backward(tensors, gradients)

    def backward_loss(self, loss: torch.Tensor) -> None:
        (loss / self.count).backward()

    def backward_weights(self, total: torch.Tensor) -> None:
        total.backward()


def dtype_of(name: str) -> torch.dtype:
    return torch.float64 if name == "compute" else getattr(torch, name)


def executors(case: Case, layers: dict, links: MemoryLinks, count: int) -> list[Executor]:
    def load(microbatch: Any, module: str, fields: Any, start: int, stop: int) -> dict:
        return loaded(case.dataset, microbatch, module, fields, start, stop)

    return [
        Executor(
            case.toy.model,
            case.partition,
            Compute(layers, count),
            links.transport(rank),
            load,
            device=torch.device("cpu"),
            dtype=dtype_of,
        )
        for rank in range(case.partition.ranks)
    ]


def loaded(dataset: ToyDataset, microbatch: Any, module: str, fields: Any, start: int, stop: int) -> dict:
    result = {}
    for name in fields:
        arrays = [a for sample in microbatch.samples for a in dataset.load(sample.id, [name])[name]]
        result[name] = torch.cat([torch.from_numpy(a) for a in arrays[start:stop]])
    return result


def run(case: Case, layers: dict, *, forward_only: bool = False, split: float = 0.0) -> torch.Tensor:
    """The mean loss over the global batch; gradients accumulate in ``layers``. Replicas run one after the other."""
    total = torch.zeros((), dtype=torch.float64)
    for replica, batch in enumerate(case.batches):
        plan = case.plan(replica, forward_only=forward_only, split=split)
        programs = compile_programs(
            plan.problem,
            plan.order,
            plan.start,
            plan.end,
            batch,
            case.toy.model,
            case.partition,
            link_depth=2,
            strategies=plan.strategies,
        )
        programs = decode(encode(programs))
        replay(programs)
        ranks = executors(case, layers, MemoryLinks(20.0), batch.loss_count)

        def work(rank: int, programs: Any = programs, batch: Any = batch, ranks: Any = ranks) -> None:
            with torch.set_grad_enabled(not forward_only):
                ranks[rank].begin(programs[rank], batch, train=not forward_only)
                for instruction in programs[rank].instructions:
                    ranks[rank].execute(instruction)
                ranks[rank].finish()

        with ThreadPoolExecutor(len(ranks)) as pool:
            for future in [pool.submit(work, rank) for rank in range(len(ranks))]:
                future.result(timeout=60)
        for executor in ranks:
            if executor.loss_sum is not None:
                total += executor.loss_sum / batch.loss_count
    return total


def largest_error(got: dict, wanted: dict) -> float:
    worst = 0.0
    for name, layers in wanted.items():
        for a, b in zip(got[name], layers, strict=True):
            for p, q in zip(a.parameters(), b.parameters(), strict=True):
                if q.grad is None:
                    assert p.grad is None or not p.grad.abs().max()
                    continue
                scale = float(q.grad.abs().max())
                found = torch.zeros_like(q.grad) if p.grad is None else p.grad
                error = float((found - q.grad).abs().max())
                worst = max(worst, error / scale if scale else error)
    return worst


@pytest.mark.parametrize("seed", range(120))
def test_gradients_are_those_of_one_process(seed: int) -> None:
    case = random_case(
        seed,
        ranks=(1, 2, 3, 4)[seed // 2 % 4],
        replicas=1 + seed // 2 % 2,
        dropout=0.4 * (seed % 3 == 0),
        tied=seed % 5 == 0,
    )
    layers, wanted = case.toy.layers(), case.toy.layers()
    loss = run(case, layers)
    expected = case.toy.reference(case.dataset, case.samples, case.batches[0].loss_count, wanted)
    assert abs(float(loss - expected)) <= 1e-10 * abs(float(expected))
    assert largest_error(layers, wanted) <= 1e-10


@pytest.mark.parametrize("seed", range(200, 320))
def test_gradients_put_off_are_those_of_one_process(seed: int) -> None:
    case = random_case(
        seed, ranks=(1, 2, 3, 4)[seed % 4], replicas=1 + seed % 2, dropout=0.4 * (seed % 3 == 0), tied=seed % 5 == 0
    )
    layers, wanted = case.toy.layers(), case.toy.layers()
    for layer in (layer for chain in layers.values() for layer in chain):
        let_put_off(layer)
    loss = run(case, layers, split=(0.5, 1.0)[seed % 2])
    expected = case.toy.reference(case.dataset, case.samples, case.batches[0].loss_count, wanted)
    assert abs(float(loss - expected)) <= 1e-10 * abs(float(expected))
    assert largest_error(layers, wanted) <= 1e-10


@pytest.mark.parametrize("seed", range(12))
def test_forward_only_gives_the_same_loss(seed: int) -> None:
    case = random_case(seed, ranks=2)
    layers = case.toy.layers()
    loss = run(case, layers, forward_only=True)
    expected = case.toy.reference(case.dataset, case.samples, case.batches[0].loss_count, case.toy.layers())
    assert abs(float(loss - expected)) <= 1e-10 * abs(float(expected))
    assert all(p.grad is None for chain in layers.values() for layer in chain for p in layer.parameters())


class Shorter(torch.nn.Module):
    """Loses a row, so that its output is not what the metadata say."""

    def forward(self, x: Any, context: Any) -> Any:
        return x[1:] if torch.is_tensor(x) else tuple(t[1:] for t in x)


def test_an_output_that_disagrees_with_the_metadata_names_the_samples() -> None:
    case = random_case(5, ranks=1, encoders=0)
    layers = case.toy.layers()
    first = case.partition.of("language")[0]
    layers["language"].insert(first.stop - 1, Shorter())
    with pytest.raises(
        StageError, match=r"language chunk 0 \(layers 0 to \d\), microbatch \d \(samples .*planned from metadata"
    ):
        run(case, layers)


def test_an_instruction_without_a_batch_is_refused() -> None:
    case = random_case(0, ranks=1)
    (executor,) = executors(case, case.toy.layers(), MemoryLinks(), 1)
    with pytest.raises(StageError, match="no batch is under way"):
        executor.finish()
