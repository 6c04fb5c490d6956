"""Problems that schedulers must cope with, drawn by Hypothesis: any placement, modules missing, memory tight."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from hypothesis import strategies as st

from ds_dip.scheduling import Choice, Pair, Problem, Task
from ds_dip.scheduling.instances import footprint


def build(
    seed: int,
    ranks: int,
    microbatches: int,
    cap: float | None,
    weights: bool = False,
    frozen: bool = False,
    looped: bool = True,
    choices: bool = False,
) -> Problem:
    """A batch of an encoder with sub-microbatches before a backbone; ``cap`` in largest footprints."""
    draw = random.Random(seed)
    tasks: list[Task] = []
    edges: list[tuple[int, int, float]] = []
    pairs: list[Pair] = []
    chunks = {"vision": ranks, "backbone": ranks * draw.randint(1, 2)}
    place = {
        (module, chunk): chunk % ranks if looped else draw.randrange(ranks)
        for module, count in chunks.items()
        for chunk in range(count)
    }

    def chain(module: str, microbatch: int, sub: int, trained: bool) -> tuple[int, int, int | None, int | None]:
        forward: list[int] = []
        backward: list[int] = []
        for chunk in range(chunks[module]):
            memory = float(draw.randint(0, 4))
            length = draw.choice([0.0, 1.0, draw.uniform(0.1, 9.0)])
            rows = [("F", length, memory, 0.0 if trained else memory)]
            if trained:
                rows.append(("B", 2 * length, 0.0, 0.0 if weights else memory))
            if trained and weights:
                rows.append(("W", length, 0.0, memory))
            numbers = []
            for kind, duration, acquire, release in rows:
                identity = (place[module, chunk], kind, module, chunk, chunk // ranks, microbatch, sub)
                numbers.append(len(tasks))
                tasks.append(Task(len(tasks), *identity, duration, acquire, release))
            forward.append(numbers[0])
            if trained:
                backward.append(numbers[1])
                if weights:
                    edges.append((numbers[1], numbers[2], 0.0))
                if choices:
                    lean = Choice(length, 3 * length, memory / 4, memory / 2, length if weights else None)
                    full = Choice(length, 2 * length, memory, 0.0, length if weights else None)
                    pairs.append(Pair(numbers[0], numbers[1], (full, lean), numbers[2] if weights else None))
        edges.extend((one, other, draw.choice([0.0, 0.3])) for one, other in itertools.pairwise(forward))
        edges.extend((other, one, draw.choice([0.0, 0.3])) for one, other in itertools.pairwise(backward))
        return forward[0], forward[-1], backward[-1] if backward else None, backward[0] if backward else None

    for microbatch in range(microbatches):
        first, last, backward, end = chain("backbone", microbatch, 0, True)
        assert backward is not None
        assert end is not None
        edges.append((last, backward, 0.0))
        for sub in range(draw.randint(0, 3)):
            _, done, start, _ = chain("vision", microbatch, sub, not frozen)
            edges.append((done, first, 0.1))
            if start is not None:
                edges.append((end, start, 0.1))
    limit = None if cap is None else max(cap * footprint(tasks), max((task.acquire for task in tasks), default=0.0))
    return Problem(ranks, (limit,) * ranks, tuple(tasks), tuple(edges), tuple(pairs))


@st.composite
def problems(draw: st.DrawFn, choices: bool = False, capped: bool | None = None) -> Problem:
    """Problems of up to some hundred tasks."""
    caps = [1.0, 1.1, 1.5, 2.0] if capped else [None] if capped is False else [None, 1.0, 1.1, 1.5, 2.0]
    return build(
        seed=draw(st.integers(0, 10**6)),
        ranks=draw(st.integers(1, 4)),
        microbatches=draw(st.integers(1, 5)),
        cap=draw(st.sampled_from(caps)),
        weights=draw(st.booleans()),
        frozen=draw(st.booleans()),
        looped=draw(st.booleans()),
        choices=choices,
    )


def scaled(problem: Problem, factor: float) -> Problem:
    """All times multiplied."""
    return replace(
        problem,
        tasks=tuple(replace(task, duration=task.duration * factor, tail=task.tail * factor) for task in problem.tasks),
        edges=tuple((before, after, delay * factor) for before, after, delay in problem.edges),
    )


def renumbered(problem: Problem, seed: int) -> tuple[Problem, dict[int, int]]:
    """The problem with other ids, in another order, and the new id of every old one."""
    draw = random.Random(seed)
    numbers = draw.sample(range(10**6), len(problem.tasks))
    new = {task.id: number for task, number in zip(problem.tasks, numbers, strict=True)}
    tasks = [replace(task, id=new[task.id]) for task in problem.tasks]
    edges = [(new[before], new[after], delay) for before, after, delay in problem.edges]
    pairs = tuple(
        replace(
            pair,
            forward=new[pair.forward],
            backward=new[pair.backward],
            weight=None if pair.weight is None else new[pair.weight],
        )
        for pair in problem.pairs
    )
    draw.shuffle(tasks)
    draw.shuffle(edges)
    return replace(problem, tasks=tuple(tasks), edges=tuple(edges), pairs=pairs), new
