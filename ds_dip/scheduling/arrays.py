"""A problem as flat arrays in canonical order, so that nothing depends on how tasks are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ds_dip.scheduling.columns import Floats, Ints, columns_of
from ds_dip.scheduling.problem import Problem, ProblemError


@dataclass(frozen=True, eq=False)
class Arrays:
    """Tasks sorted by identity (microbatch, sub, module, segment, chunk, kind), ``n`` of them.

    ``id``, ``rank``, ``kind`` (0 F, 1 B, 2 W), ``microbatch``, ``module``, ``chunk``, ``sub``,
    ``group`` (admission group: microbatches joined by edges), ``duration``, ``acquire``,
    ``release``, ``tail``, ``depth`` (longest way in hops) and ``priority`` (first-come order, lower
    first) have shape (n,); ``capacity`` (ranks,), infinite for no limit. Successors of task i are
    ``succ[succ_ptr[i]:succ_ptr[i+1]]`` with ``succ_delay``; predecessors alike. ``topo`` is one
    topological order. ``unit`` numbers DIP segments (kind, module, microbatch, sub, segment),
    ``bundle`` what the search may reorder: (kind, module, microbatch).
    """

    problem: Problem
    n: int
    ranks: int
    id: Ints
    rank: Ints
    kind: Ints
    microbatch: Ints
    module: Ints
    chunk: Ints
    sub: Ints
    group: Ints
    unit: Ints
    bundle: Ints
    duration: Floats
    acquire: Floats
    release: Floats
    tail: Floats
    capacity: Floats
    succ_ptr: Ints
    succ: Ints
    succ_delay: Floats
    pred_ptr: Ints
    pred: Ints
    pred_delay: Floats
    topo: Ints
    depth: Ints
    priority: Ints
    pairs: Ints
    index: dict[int, int] = field(repr=False)
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def groups(self) -> int:
        """How many admission groups there are."""
        return int(self.group.max()) + 1 if self.n else 0

    def with_choices(self, choices: Sequence[int]) -> Arrays:
        """The same tasks with the durations and memory of the chosen strategies."""
        if not self.problem.pairs:
            return self
        held: dict[tuple[int, ...], Arrays] = self.cache.setdefault("choices", {})
        key = tuple(choices)
        if key not in held:
            while len(held) >= 16:
                held.pop(next(iter(held)))
            held[key] = self._choose(key)
        return held[key]

    def _choose(self, choices: Sequence[int]) -> Arrays:
        pairs = self.problem.pairs
        if len(choices) != len(pairs):
            raise ProblemError(f"{len(choices)} choices for {len(pairs)} pairs; give one a pair")
        duration, acquire, release = self.duration.copy(), self.acquire.copy(), self.release.copy()
        for position, (pair, number) in enumerate(zip(pairs, choices, strict=True)):
            if not 0 <= number < len(pair.choices):
                raise ProblemError(f"choice {number} of pair {position} does not exist; it has {len(pair.choices)}")
            choice = pair.choices[number]
            forward, backward, weight = self.pairs[position]
            duration[forward], acquire[forward] = choice.forward_duration, choice.memory
            duration[backward], acquire[backward] = choice.backward_duration, choice.backward_acquire
            if weight < 0:
                release[backward] = choice.memory + choice.backward_acquire
            else:
                duration[weight] = choice.weight_duration
                release[backward] = choice.backward_acquire
                release[weight] = choice.memory + acquire[weight]
        return replace(self, duration=duration, acquire=acquire, release=release, cache={})


_recent: dict[int, Arrays] = {}


def arrays_of(problem: Problem) -> Arrays:
    """The problem's arrays, checked; the last few problems are remembered by identity."""
    known = _recent.get(id(problem))
    if known is not None and known.problem is problem:
        return known
    arrays = _build(problem)
    while len(_recent) >= 4:
        _recent.pop(next(iter(_recent)), None)
    _recent[id(problem)] = arrays
    return arrays


def _build(problem: Problem) -> Arrays:
    n = len(problem.tasks)
    given = columns_of(problem)
    identity = ("rank", "kind", "chunk", "segment", "module", "sub", "microbatch")
    order = np.lexsort([*given.numbers.values(), *(given.integers[name] for name in identity)])
    columns = {name: values[order] for name, values in given.integers.items()}
    numbers = {name: values[order] for name, values in given.numbers.items()}
    index = dict(zip(columns["id"].tolist(), range(n), strict=True))
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    before, after, delay = place[given.before], place[given.after], given.delay
    succ_ptr, succ, succ_delay = _rows(n, before, after, delay)
    pred_ptr, pred, pred_delay = _rows(n, after, before, delay)
    topo, depth = _sort(columns["id"], succ_ptr, succ, pred_ptr)
    bundle = numbered(columns["kind"], columns["module"], columns["microbatch"])
    unit = numbered(bundle, columns["sub"], columns["segment"])
    first = np.full(int(unit.max()) + 1 if n else 0, n, dtype=np.int64)
    np.minimum.at(first, unit, depth)
    keys = [columns["chunk"], columns["kind"], columns["module"], columns["segment"], columns["sub"]]
    priority = np.empty(n, dtype=np.int64)
    priority[np.lexsort([*keys, first[unit], columns["microbatch"]]) if n else order] = np.arange(n)
    capacity = np.array([np.inf if limit is None else limit for limit in problem.memory_capacity], dtype=np.float64)
    members = [
        [index[pair.forward], index[pair.backward], -1 if pair.weight is None else index[pair.weight]]
        for pair in problem.pairs
    ]
    return Arrays(
        problem=problem,
        n=n,
        ranks=problem.ranks,
        id=columns["id"],
        rank=columns["rank"],
        kind=columns["kind"],
        microbatch=columns["microbatch"],
        module=columns["module"],
        chunk=columns["chunk"],
        sub=columns["sub"],
        group=_groups(columns["microbatch"], before, after),
        unit=unit,
        bundle=bundle,
        duration=numbers["duration"],
        acquire=numbers["acquire"],
        release=numbers["release"],
        tail=numbers["tail"],
        capacity=capacity,
        succ_ptr=succ_ptr,
        succ=succ,
        succ_delay=succ_delay,
        pred_ptr=pred_ptr,
        pred=pred,
        pred_delay=pred_delay,
        topo=topo,
        depth=depth,
        priority=priority,
        pairs=np.array(members, dtype=np.int64).reshape(-1, 3),
        index=index,
    )


def _rows(n: int, key: Ints, value: Ints, delay: Floats) -> tuple[Ints, Ints, Floats]:
    """Edges as compressed rows by ``key``, each row sorted by ``value``."""
    order = np.lexsort([delay, value, key]) if len(key) else np.zeros(0, dtype=np.int64)
    pointer = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(key, minlength=n), out=pointer[1:])
    return pointer, value[order], delay[order]


def _sort(ids: Ints, succ_ptr: Ints, succ: Ints, pred_ptr: Ints) -> tuple[Ints, Ints]:
    """A topological order and each task's depth in hops; a cycle is refused by the ids on it."""
    waiting = np.diff(pred_ptr).tolist()
    pointer, targets = succ_ptr.tolist(), succ.tolist()
    depth = [0] * len(waiting)
    order = [task for task, count in enumerate(waiting) if not count]
    for task in order:
        below = depth[task] + 1
        for target in targets[pointer[task] : pointer[task + 1]]:
            waiting[target] -= 1
            if below > depth[target]:
                depth[target] = below
            if not waiting[target]:
                order.append(target)
    if len(order) < len(waiting):
        stuck = [int(ids[task]) for task, count in enumerate(waiting) if count]
        shown = ", ".join(str(task) for task in sorted(stuck)[:8])
        raise ProblemError(f"the edges have a cycle among or before tasks {shown}; remove one of its edges")
    return np.array(order, dtype=np.int64), np.array(depth, dtype=np.int64)


def numbered(*columns: Ints) -> Ints:
    """Numbers from 0 that rows of equal values share, in the order of the rows, shape (n,)."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        key = np.unique(key * len(values) + place.reshape(-1), return_inverse=True)[1].reshape(-1)
    return key.astype(np.int64)


def _groups(microbatch: Ints, before: Ints, after: Ints) -> Ints:
    """Microbatches joined by edges, numbered by their smallest microbatch."""
    if not len(microbatch):
        return microbatch
    values, position = np.unique(microbatch, return_inverse=True)
    parent = list(range(len(values)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    crossing = position[before] != position[after] if len(before) else np.zeros(0, dtype=bool)
    for one, other in zip(position[before][crossing], position[after][crossing], strict=True):
        low, high = sorted((root(int(one)), root(int(other))))
        parent[high] = low
    roots = np.array([root(node) for node in range(len(values))])
    return np.unique(roots, return_inverse=True)[1][position].astype(np.int64)
