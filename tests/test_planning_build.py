"""The Problem of a batch: tasks and edges follow the data, and its backward mirrors its forward."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.data.metadata import SampleMetadata
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Layer, Model, Module, TensorSpec
from ds_dip.partition import make_partition
from ds_dip.planning import build_problem, cut
from ds_dip.planning.batch import Batch
from ds_dip.scheduling.problem import Problem, Task

LAYER = Layer("mine", (TensorSpec(("tokens", 4)), TensorSpec(("instances",), "int64")))


def model_of(layers: dict[str, int], frozen: tuple[str, ...] = ()) -> Model:
    modules = tuple(Module(name, (LAYER,) * count, name in frozen) for name, count in layers.items())
    return Model("m", modules, tuple((name, "language") for name in layers if name != "language"))


def sample(number: int, images: int, clips: int = 0) -> SampleMetadata:
    return SampleMetadata(str(number), {"vision": (8,) * images, "audio": (6,) * clips, "language": (12,)}, 2)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Batch, Model, Partition]:
    ranks, laps = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    model = model_of(
        {"vision": ranks, "audio": ranks * 2, "language": ranks * laps},
        frozen=draw(st.sampled_from([(), ("vision",), ("language",), ("vision", "audio")])),
    )
    partition = make_partition(
        model, ranks, {"audio": 2, "language": laps}, {"vision": draw(st.integers(1, 4)), "audio": 2}
    )
    samples = [sample(i, draw(st.integers(0, 5)), draw(st.integers(0, 3))) for i in range(4)]
    share = draw(st.sampled_from([[[0, 1], [2, 3]], [[0, 1, 2, 3]], [[0], [1], [2], [3]]]))
    return cut(0, samples, share, model, partition), model, partition


def built(case: tuple[Batch, Model, Partition], **options: bool) -> Problem:
    batch, model, partition = case
    return build_problem(batch, model, partition, Roofline(model), **options)  # type: ignore[arg-type]


def identity(task: Task) -> tuple[str, str, int, int, int]:
    return task.kind, task.module, task.chunk, task.microbatch, task.sub


@settings(deadline=None)
@given(cases())
def test_every_stage_is_there_once_on_its_chunks_rank(case: tuple[Batch, Model, Partition]) -> None:
    batch, model, partition = case
    problem = built(case)
    expected = Counter(
        (kind, chunk.module, chunk.index, microbatch, sub)
        for chunk in partition.chunks
        for microbatch, content in enumerate(batch.microbatches)
        for sub in range(len(content.subs[chunk.module]))
        for kind in ("F", "B")
        if kind == "F" or model.backward(chunk.module)
    )
    assert Counter(map(identity, problem.tasks)) == expected
    assert [task.id for task in problem.tasks] == list(range(len(problem.tasks)))
    chunks = {(chunk.module, chunk.index): chunk for chunk in partition.chunks}
    for task in problem.tasks:
        chunk = chunks[task.module, task.chunk]
        assert (task.rank, task.segment) == (chunk.rank, chunk.segment)


@settings(deadline=None)
@given(cases())
def test_backward_edges_mirror_forward_edges(case: tuple[Batch, Model, Partition]) -> None:
    _, model, _ = case
    problem = built(case)
    pairs = [(problem.tasks[a], problem.tasks[b]) for a, b, _ in problem.edges]
    forwards = {(identity(a)[1:], identity(b)[1:]) for a, b in pairs if (a.kind, b.kind) == ("F", "F")}
    backwards = {(identity(b)[1:], identity(a)[1:]) for a, b in pairs if (a.kind, b.kind) == ("B", "B")}
    assert backwards == {pair for pair in forwards if model.backward(pair[0][0])}
    own = {(identity(a)[1:], identity(b)[1:]) for a, b in pairs if (a.kind, b.kind) == ("F", "B")}
    assert own == {(identity(t)[1:], identity(t)[1:]) for t in problem.tasks if t.kind == "B"}
    assert len(pairs) == len(forwards) + len(backwards) + len(own)


@settings(deadline=None)
@given(cases())
def test_every_upstream_sub_microbatch_feeds_the_first_chunk_downstream(case: tuple[Batch, Model, Partition]) -> None:
    batch, model, partition = case
    problem = built(case)
    sources = Counter(
        (problem.tasks[a].module, problem.tasks[a].microbatch)
        for a, b, _ in problem.edges
        if problem.tasks[b].kind == "F" and problem.tasks[a].module != problem.tasks[b].module
    )
    for module in ("vision", "audio"):
        for number, content in enumerate(batch.microbatches):
            assert sources[module, number] == len(content.subs[module])
    for a, b, _ in problem.edges:
        before, after = problem.tasks[a], problem.tasks[b]
        if before.module != after.module and before.kind == "F":
            assert (before.chunk, after.chunk) == (len(partition.of(before.module)) - 1, 0)
    assert model.upstream("language") == ("vision", "audio")


@settings(deadline=None)
@given(cases(), st.booleans())
def test_memory_comes_back_per_rank_and_microbatch(case: tuple[Batch, Model, Partition], forward_only: bool) -> None:
    problem = built(case, forward_only=forward_only)
    held: dict[tuple[int, int], list[float]] = {}
    for task in problem.tasks:
        held.setdefault((task.rank, task.microbatch), []).extend((task.acquire, -task.release))
    assert all(sum(sorted(changes, key=abs)) == 0 for changes in held.values())
    assert any(task.acquire for task in problem.tasks)


@settings(deadline=None)
@given(cases())
def test_an_edge_costs_a_transfer_exactly_between_ranks(case: tuple[Batch, Model, Partition]) -> None:
    problem = built(case)
    for a, b, delay in problem.edges:
        assert (delay > 0) == (problem.tasks[a].rank != problem.tasks[b].rank)


def test_a_gradient_leaves_out_what_has_none() -> None:
    model = model_of({"language": 2})
    partition = make_partition(model, 2)
    batch = cut(0, [SampleMetadata("0", {"language": (10, 10)}, 1)], [[0]], model, partition)
    problem = build_problem(batch, model, partition, Roofline(model, Rates(link=1.0, link_latency=0.0)))
    delays = {(problem.tasks[a].kind, problem.tasks[b].kind): delay for a, b, delay in problem.edges}
    assert delays == {("F", "B"): 0.0, ("F", "F"): 20 * 4 * 4 + 2 * 8, ("B", "B"): 20 * 4 * 4}


@settings(deadline=None)
@given(cases())
def test_forward_only_has_no_backward(case: tuple[Batch, Model, Partition]) -> None:
    assert {task.kind for task in built(case, forward_only=True).tasks} == {"F"}


@settings(deadline=None)
@given(cases())
def test_the_same_batch_gives_the_same_problem(case: tuple[Batch, Model, Partition]) -> None:
    assert built(case) == built(case)


def test_capacity_is_one_for_all_or_one_each() -> None:
    model = model_of({"language": 2})
    partition = make_partition(model, 2)
    batch = cut(0, [SampleMetadata("0", {"language": (4,)}, 1)], [[0]], model, partition)
    for given_capacity, expected in ((None, (None, None)), (5.0, (5.0, 5.0)), ((1.0, None), (1.0, None))):
        problem = build_problem(batch, model, partition, Roofline(model), memory_capacity=given_capacity)
        assert problem.memory_capacity == expected
    with pytest.raises(ValueError, match="3 values for 2 ranks"):
        build_problem(batch, model, partition, Roofline(model), memory_capacity=(1.0, 2.0, 3.0))
