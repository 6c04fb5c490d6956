"""The critical path: the chain of tasks and messages that ends the batch, without a moment in which it waits."""

from __future__ import annotations

from ds_dip.explaining.explanation import Link
from ds_dip.explaining.view import View


def critical_path(view: View) -> tuple[Link, ...]:
    """The path to the end of the batch, first task first: by what each task waited for last.

    Where its input and its rank became free at one time, it waited for the input.
    """
    links: list[Link] = []
    task, ids, rank = view.last, view.arrays.id, view.arrays.rank
    while task >= 0:
        start, end = float(view.start[task]), float(view.end[task])
        source, output = view.waited_for(task)
        gap = start - float(view.end[source]) if source >= 0 else start
        transfer = late = 0.0
        if source < 0:
            late = gap
            reason = "late" if gap > view.same else "first"
        elif not output:
            late = gap
            reason = "memory" if view.needs_memory_of(task, source) else "order"
        elif view.measured and rank[source] != rank[task]:
            transfer, reason = gap, "transfer"
        else:
            delay = view.last_input[task][1]
            late = gap - delay if abs(gap - delay) > view.same else 0.0
            transfer = gap - late
            reason = "transfer" if transfer > view.same else "data"
        if late > view.same:
            reason = "late"
        links.append(Link(int(ids[task]), int(rank[task]), start, end, reason, transfer, late))
        task = source
    return tuple(links[::-1])
