"""Re-timing and dual-queue interleaving in plain Python: the oracle of the compiled kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ds_dip.scheduling.admission import Admission
from ds_dip.scheduling.arrays import Arrays
from ds_dip.scheduling.problem import ScheduleError

FORWARD, BACKWARD, WEIGHT = 0, 1, 2


def retime(arrays: Arrays, orders: Sequence[Sequence[int]]) -> list[float]:
    """Earliest start of every task (by position) when each rank runs its tasks in the given order.

    Raises ScheduleError where the orders and the edges form a cycle.
    """
    start, end = [0.0] * arrays.n, [0.0] * arrays.n
    ahead = {task: before for order in orders for before, task in itertools.pairwise(order)}
    for task in topological(arrays, orders):
        if task in ahead:
            start[task] = end[ahead[task]]
        for edge in range(arrays.pred_ptr[task], arrays.pred_ptr[task + 1]):
            start[task] = max(start[task], end[arrays.pred[edge]] + float(arrays.pred_delay[edge]))
        end[task] = start[task] + float(arrays.duration[task])
    return start


def topological(arrays: Arrays, orders: Sequence[Sequence[int]]) -> list[int]:
    """One order of all tasks that agrees with the edges and every rank's order.

    Raises ScheduleError where there is none.
    """
    waiting = [int(arrays.pred_ptr[task + 1] - arrays.pred_ptr[task]) for task in range(arrays.n)]
    following = {before: task for order in orders for before, task in itertools.pairwise(order)}
    for task in following.values():
        waiting[task] += 1
    ready = [task for task in range(arrays.n) if not waiting[task]]
    for task in ready:
        targets = arrays.succ[arrays.succ_ptr[task] : arrays.succ_ptr[task + 1]].tolist()
        if task in following:
            targets.append(following[task])
        for target in targets:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if len(ready) < arrays.n:
        stuck = sorted(int(arrays.id[task]) for task in range(arrays.n) if waiting[task])[:8]
        raise ScheduleError(f"the order contradicts the edges around tasks {', '.join(map(str, stuck))}; reorder them")
    return ready


class Interleaver:
    """DIP's dual-queue interleaving (paper, "dual-queue interleaving") under the banker's rule.

    Each rank has a forward and a backward queue by priority. The rank with the smallest possible
    start goes next; where both kinds are ready by the rank's last end, kinds alternate, else the
    earliest start wins. Weight gradients fill time in which nothing else could start.
    """

    def __init__(self, arrays: Arrays, rule: Admission, priority: Sequence[int]) -> None:
        self.arrays, self.rule, self.priority = arrays, rule, priority
        self.waiting = [int(arrays.pred_ptr[task + 1] - arrays.pred_ptr[task]) for task in range(arrays.n)]
        self.chained = dict(rule.chain)
        for after in self.chained.values():
            self.waiting[after] += 1
        self.ready = [0.0] * arrays.n
        self.queue: list[list[list[int]]] = [[[], [], []] for _ in range(arrays.ranks)]
        self.free = [0.0] * arrays.ranks
        self.last = [BACKWARD] * arrays.ranks
        self.held = [[0.0] * arrays.ranks for _ in range(arrays.groups())]
        self.need = rule.need.tolist()
        self.use = [0.0] * arrays.ranks
        self.active: list[int] = []
        self.left = [[0] * arrays.ranks for _ in range(arrays.groups())]
        for task in range(arrays.n):
            self.left[int(arrays.group[task])][int(arrays.rank[task])] += 1

    def run(self) -> list[list[int]]:
        """The order of every rank, by position."""
        orders: list[list[int]] = [[] for _ in range(self.arrays.ranks)]
        for task, count in enumerate(self.waiting):
            if not count:
                self._enqueue(task)
        for _ in range(self.arrays.n):
            found = [candidate for rank in range(self.arrays.ranks) if (candidate := self._candidate(rank))]
            start, rank, task = min(found)
            orders[rank].append(task)
            self._start(start, rank, task)
        return orders

    def _enqueue(self, task: int) -> None:
        self.queue[int(self.arrays.rank[task])][int(self.arrays.kind[task])].append(task)

    def _candidate(self, rank: int) -> tuple[float, int, int] | None:
        """The task this rank would run next, with its start."""
        forward, backward, weight = (self._best(rank, kind) for kind in (FORWARD, BACKWARD, WEIGHT))
        best: tuple[float, int] | None
        if forward and backward and forward[0] == backward[0]:
            best = backward if self.last[rank] == FORWARD else forward
        else:
            best = min(filter(None, (forward, backward)), default=None)
        if weight and (not best or weight[0] < best[0]):
            best = weight
        return (best[0], rank, best[1]) if best else None

    def _best(self, rank: int, kind: int) -> tuple[float, int] | None:
        keys = [
            (max(self.free[rank], self.ready[task]), self.priority[task], task)
            for task in self.queue[rank][kind]
            if self._admissible(task, rank)
        ]
        if not keys:
            return None
        start, _, task = min(keys)
        return start, task

    def _admissible(self, task: int, rank: int) -> bool:
        limit = float(self.rule.limit[rank])
        acquire, growth = float(self.arrays.acquire[task]), float(self.rule.claim[task])
        if math.isinf(limit):
            return True
        if self.use[rank] + acquire > limit:
            return False
        if not growth:
            return True
        group = int(self.arrays.group[task])
        above = self.use[rank]
        for earlier in self.active:
            if earlier == group:
                break
            if above + self.need[earlier][rank] + growth > limit:
                return False
            above -= self.held[earlier][rank]
        return True

    def _start(self, start: float, rank: int, task: int) -> None:
        arrays, group = self.arrays, int(self.arrays.group[task])
        kind = int(arrays.kind[task])
        self.queue[rank][kind].remove(task)
        if kind != WEIGHT:
            self.last[rank] = kind
        end = start + float(arrays.duration[task])
        self.free[rank] = end
        if group not in self.active:
            self.active.append(group)
        self.left[group][rank] -= 1
        if not any(self.left[group]):
            self.active.remove(group)
        net = float(arrays.acquire[task] - arrays.release[task])
        self.use[rank] += net
        self.held[group][rank] += net
        after = float(self.rule.need_after[task])
        if not self.left[group][rank]:
            self.need[group][rank] = 0.0
        elif after >= 0:
            self.need[group][rank] = after
        else:
            self.need[group][rank] -= float(self.rule.claim[task])
        targets = [
            (int(arrays.succ[edge]), float(arrays.succ_delay[edge]))
            for edge in range(arrays.succ_ptr[task], arrays.succ_ptr[task + 1])
        ]
        if task in self.chained:
            targets.append((self.chained[task], -math.inf))
        for target, delay in targets:
            self.ready[target] = max(self.ready[target], end + delay)
            self.waiting[target] -= 1
            if not self.waiting[target]:
                self._enqueue(target)


def interleave(arrays: Arrays, rule: Admission, priority: Sequence[int]) -> list[list[int]]:
    """Orders (positions per rank) of the dual-queue interleaving; lower priority values go first."""
    return Interleaver(arrays, rule, priority).run()
