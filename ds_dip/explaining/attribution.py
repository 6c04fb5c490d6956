"""A cause for every bubble: each rank's gaps are cut where what it waits for changes.

In this order a moment of a gap is due to: later work that the rank could do then, kept back by memory or by the order
(see ``ready``); a message on its way; else the task of another rank that runs then, on the chain of what the next task
waited for. Of the last kind, as many seconds as a rank has less to do than the busiest one are imbalance, from the end
of the batch on and as far as it waits for ranks with more to do: no order removes them. What a blamed task takes beyond
the mean of its stage is unevenness of microbatches. The rest is ramp-up, ramp-down, or waiting for a peer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ds_dip.explaining.critical import critical_path
from ds_dip.explaining.explanation import Bubble, Explanation
from ds_dip.explaining.ready import Missed, missed_work
from ds_dip.explaining.view import ENDING, LATE, RUN, TRANSFER, Span, Times, View, view_of
from ds_dip.scheduling.problem import Problem
from ds_dip.scheduling.schedule import Schedule

#: Causes that are waiting for a running task of another rank, before they are looked at more closely.
_WAITING = ("ramp-up", "peer", "ramp-down")


def explain(
    problem: Problem,
    schedule: Schedule,
    times: Times | None = None,
    *,
    measured: bool = False,
    ready_work: bool = True,
    waits: Sequence[Bubble] = (),
    loading: Sequence[float] = (),
) -> Explanation:
    """Why a schedule takes as long as it does: by its earliest times, or those of a plan, or ``measured`` ones.

    ``waits`` are times that a rank is known to have waited, as for its plan: where it ran nothing they are bubbles of
    theirs. ``loading`` are seconds that each rank waited for samples between its tasks, nobody knows when: its
    lateness, from the beginning on, is due to them. Not every problem tells what ``ready_work`` there is: one that was
    made from a timeline has no edges within a rank. Raises ScheduleError as ``retime`` does, or where a task has no
    times.
    """
    view = view_of(problem, schedule, times, measured=measured)
    busy, bubbles = [], list[Bubble]()
    missed = missed_work(view) if ready_work else [[] for _ in range(problem.ranks)]
    for rank in range(problem.ranks):
        found = list(_rank(view, rank, missed[rank]))
        own = [wait for wait in waits if wait.rank == rank]
        cut = [part for bubble in found for part in _cut(bubble, own)]
        bubbles += _refined(view, rank, list(_loaded(cut, loading[rank] if loading else 0.0)))
        busy.append(view.until - sum(bubble.seconds for bubble in found))
    path = critical_path(view)
    ending = view.until - path[-1].end if path else view.until
    return Explanation(view.until, tuple(busy), path, ending, tuple(bubbles), measured, ready_work)


def _rank(view: View, rank: int, missed: Sequence[Missed]) -> Iterator[Bubble]:
    """A rank's bubbles; waiting is not looked at closely yet."""
    free = 0.0
    causes = [Bubble(rank, own.start, own.end, "order" if own.fits else "memory", own.task) for own in missed]
    order, begun = view.orders[rank], [own.start for own in causes]
    for place, task in enumerate(order):
        start = float(view.start[task])
        if start > free:
            waiting = "peer" if place else "ramp-up"
            inside = causes[bisect_left(begun, free) : bisect_left(begun, start)]
            yield from _filled(inside, _waits(view, rank, view.chain(task), waiting, task), free, start)
        free = max(free, float(view.end[task]))
    if view.until > free:
        ended = min(view.until, max((float(view.end[task] + view.arrays.tail[task]) for task in order), default=free))
        if view.measured:
            ended = free
        ending = [Bubble(rank, free, ended, "ending")] if ended - free > view.same else []
        yield from _filled(ending, _waits(view, rank, _end(view), "ramp-down", -1), free, view.until)


def _end(view: View) -> Iterator[Span]:
    """The chain of what ends the batch, backwards from its end."""
    if view.last < 0:
        yield Span(0.0, view.until, LATE, -1)
        return
    end, start = float(view.end[view.last]), float(view.start[view.last])
    if view.until > end:
        yield Span(end, view.until, ENDING, view.last)
    yield Span(start, end, RUN, view.last)
    yield from view.chain(view.last)


def _waits(view: View, rank: int, chain: Iterable[Span], waiting: str, own: int) -> Iterator[Bubble]:
    """The spans of a chain as bubbles of a rank that waits for what they are; backwards."""
    for span in chain:
        cause = waiting
        if span.kind == TRANSFER:
            cause = "transfer"
        elif span.kind == LATE and span.task == own:
            cause = "late"
        elif span.kind == ENDING and (view.measured or view.arrays.rank[span.task] == rank):
            cause = "ending"
        yield Bubble(rank, span.start, span.end, cause, span.task if span.task >= 0 else None)


def _filled(first: Sequence[Bubble], rest: Iterator[Bubble], start: float, end: float) -> list[Bubble]:
    """The bubbles of a gap: the first ones where they are, the rest between them."""
    found = list(first)
    edges = [start, *(edge for own in first for edge in (own.start, own.end)), end]
    holes = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    current = next(rest, None)
    for low, high in reversed(holes):
        while current is not None and current.end > low:
            begun, ended = max(low, current.start), min(high, current.end)
            if ended > begun:
                found.append(replace(current, start=begun, end=ended))
            if current.start < low:
                break
            current = next(rest, None)
    return sorted(found, key=lambda own: own.start)


def _cut(bubble: Bubble, waits: Sequence[Bubble]) -> Iterator[Bubble]:
    """A bubble's parts, those in which the rank is known to have waited with that cause."""
    at = bubble.start
    for wait in sorted(waits, key=lambda own: own.start):
        begun, ended = max(at, wait.start), min(bubble.end, wait.end)
        if ended <= begun:
            continue
        if begun > at:
            yield replace(bubble, start=at, end=begun)
        yield replace(wait, start=begun, end=ended)
        at = ended
    if bubble.end > at:
        yield replace(bubble, start=at)


def _loaded(found: Sequence[Bubble], seconds: float) -> Iterator[Bubble]:
    """A rank's bubbles; the first ``seconds`` in which it was late waited for data."""
    for bubble in found:
        until = min(bubble.end, bubble.start + seconds)
        if bubble.cause != "late" or until <= bubble.start:
            yield bubble
            continue
        seconds -= until - bubble.start
        yield replace(bubble, end=until, cause="data")
        if bubble.end > until:
            yield replace(bubble, start=until)


def _refined(view: View, rank: int, found: list[Bubble]) -> list[Bubble]:
    """A rank's bubbles with their tasks by id; waiting due to imbalance or uneven microbatches is cut out."""
    work = view.work
    left, parts = float(work.max() - work[rank]), list[Bubble]()
    for bubble in reversed(found):
        task = bubble.task
        waits = bubble.cause in _WAITING and task is not None and bubble.start < view.end[task]
        if task is None or not waits:
            parts.append(bubble)
            continue
        split = bubble.end
        if left > view.same and work[view.arrays.rank[task]] - work[rank] > view.same:
            split = max(bubble.start, bubble.end - left)
            left -= bubble.end - split
            parts.append(replace(bubble, start=split, cause="imbalance"))
        if split > bubble.start:
            parts += _uneven(view, replace(bubble, end=split))
    ids = view.arrays.id
    return [
        own if own.task is None else replace(own, task=int(ids[own.task])) for own in reversed(parts) if own.seconds > 0
    ]


def _uneven(view: View, bubble: Bubble) -> list[Bubble]:
    """The last part of waiting for a task that is longer than its stage's mean, and what is before it; backwards."""
    task = bubble.task
    assert task is not None
    excess = float(view.end[task] - view.start[task]) - view.means[task]
    border = max(bubble.start, float(view.end[task]) - excess)
    if excess <= view.same or border >= bubble.end:
        return [bubble]
    return [replace(bubble, start=border, cause="uneven"), replace(bubble, end=border)]
