"""Searches over segment orders for comparison: DIP's Monte Carlo tree search, depth-first and random.

A position is the beginning of an order of bundles (kind, module, microbatch): segments of one
microbatch and module share a priority, which is the paper's symmetry. Orders are decoded by the
dual queue. ``METHODS`` ask for positions to score, and are told the makespans.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.graph import graph_of
from ds_dip.scheduling.jobs import Found, bundles_of, evaluate, rows, seeded
from ds_dip.scheduling.search import Pool, Progress

ALPHA, BETA, ROLL_OUTS = 1.0, 0.02, 10
"""Selection is score ** ALPHA + BETA * sqrt(ln parent / child) with score = bound / makespan."""


@dataclass(frozen=True, slots=True)
class Position:
    """An order of bundles whose first ``fixed`` stay; ``count`` random orders of the rest are scored."""

    order: Sequence[int]
    fixed: int
    count: int


class Method(Protocol):
    """Asks for positions, one a worker (none when it is done), and is told their best makespans."""

    def ask(self, count: int) -> list[Position]:
        """The next positions to score, at most ``count``."""
        ...

    def tell(self, makespans: list[float]) -> None:
        """The best makespan found at each position asked for."""
        ...


class RandomOrders:
    """Random orders of all bundles."""

    def __init__(self, order: list[int], bound: float) -> None:
        self.order, self.bound = order, bound

    def ask(self, count: int) -> list[Position]:
        """As many roll-outs from the root as asked for."""
        return [Position(self.order, 0, ROLL_OUTS)] * count

    def tell(self, makespans: list[float]) -> None:
        """Nothing is learnt."""


class DepthFirst(RandomOrders):
    """Complete orders as a depth-first search meets them that tries first-come bundles first."""

    def __init__(self, order: list[int], bound: float) -> None:
        super().__init__(order, bound)
        self.leaves = itertools.permutations(order)

    def ask(self, count: int) -> list[Position]:
        """The next leaves."""
        return [Position(leaf, len(leaf), 1) for leaf in itertools.islice(self.leaves, count)]


@dataclass(slots=True)
class Node:
    """A beginning of an order: the best score below it, visits, children, and bundles not yet tried."""

    parent: Node | None
    bundle: int
    untried: list[int]
    children: list[Node] = field(default_factory=list)
    score: float = 0.0
    visits: int = 1

    def prefix(self) -> list[int]:
        """The bundles from the root to here."""
        found: list[int] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            found.append(node.bundle)
            node = node.parent
        return found[::-1]


class MonteCarlo(RandomOrders):
    """DIP's tree search: one new node a worker, ten roll-outs behind it, the best one backed up.

    Nodes are tried in the order given, so the tree grows along it first. What is on its way counts
    as a visit without a score, which spreads the workers over the tree.
    """

    def __init__(self, order: list[int], bound: float) -> None:
        super().__init__(order, bound)
        self.root = Node(None, -1, order[::-1])
        self.asked: list[Node] = []

    def ask(self, count: int) -> list[Position]:
        """The positions of new nodes."""
        self.asked = [self._grow() for _ in range(count)]
        positions = []
        for node in self.asked:
            prefix = node.prefix()
            inside = set(prefix)
            rest = [bundle for bundle in self.order if bundle not in inside]
            positions.append(Position(prefix + rest, len(prefix), ROLL_OUTS))
        return positions

    def tell(self, makespans: list[float]) -> None:
        """Back up every node's best score to the root."""
        for asked, makespan in zip(self.asked, makespans, strict=True):
            score = self.bound / makespan if makespan > 0 else 1.0
            node: Node | None = asked
            while node is not None:
                node.score = max(node.score, score)
                node = node.parent

    def _grow(self) -> Node:
        node = self.root
        node.visits += 1
        while not node.untried and node.children:
            spread = math.log(node.visits)
            node = max(node.children, key=lambda child: _promise(child, spread))
            node.visits += 1
        if not node.untried:
            return node
        bundle = node.untried.pop()
        inside = {*node.prefix(), bundle}
        child = Node(node, bundle, [other for other in reversed(self.order) if other not in inside])
        node.children.append(child)
        return child


def _promise(child: Node, spread: float) -> float:
    return float(child.score**ALPHA) + BETA * math.sqrt(spread / child.visits)


METHODS: dict[str, Callable[[list[int], float], Method]] = {
    "mcts": MonteCarlo,
    "dfs": DepthFirst,
    "random": RandomOrders,
}


def search_orders(
    method: str,
    arrays: Arrays,
    choices: tuple[int, ...],
    pool: Pool,
    bound: float,
    seed: int,
    workers: int,
    progress: Progress | None = None,
) -> None:
    """Run a method of ``METHODS`` on arrays with chosen strategies until the pool's budget is over.

    Each round scores one position a worker; all share what is learnt. It begins with first come.
    """
    order = bundles_of(arrays).first_come.tolist()
    way, budget, draws = METHODS[method](order, bound), pool.budget, random.Random(seed)

    def score(job: tuple[Position, int]) -> Found:
        return _roll_out(arrays, choices, *job)

    def merge(found: Found) -> float:
        budget.used += found.evaluations
        pool.add(found.makespan, found.sequence, found.choices)
        return found.makespan

    merge(score((Position(order, len(order), 1), 0)))
    with ThreadPoolExecutor(workers) as threads:
        while not budget.over() and pool.best > bound * (1 + 1e-9):
            jobs = [(position, draws.getrandbits(62)) for position in way.ask(workers)]
            if not jobs:
                return
            way.tell([merge(found) for found in threads.map(score, jobs)])
            if progress:
                progress(pool.best, bound, budget.used, budget.elapsed())


def _roll_out(arrays: Arrays, choices: tuple[int, ...], position: Position, seed: int) -> Found:
    from ds_dip.scheduling import permuting, queueing

    graph, held = graph_of(arrays), bundles_of(arrays)
    order = np.array(position.order, dtype=np.int32)
    best, sequence = order.copy(), np.empty(arrays.n, dtype=np.int32)
    room = queueing.scratch(graph)
    makespan = permuting.roll_out(
        graph, held.pointer, held.tasks, order, position.fixed, position.count, best, sequence, seeded(seed), *room
    )
    if not np.isfinite(makespan):
        return Found(np.inf, sequence, choices, position.count)
    order = rows(arrays, sequence)
    return Found(evaluate(arrays, order), order, choices, position.count, best)
