"""An explanation in words, with each rank drawn as a line of letters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby

from ds_dip.explaining.explanation import CAUSES, Bubble, Explanation, Link
from ds_dip.scheduling.problem import Problem, Task

#: What is drawn where a rank runs no task.
MARKS: Mapping[str, str] = {
    "ramp-up": "/",
    "peer": ".",
    "transfer": ">",
    "memory": "#",
    "order": "?",
    "imbalance": "=",
    "uneven": "~",
    "ramp-down": "\\",
    "ending": "|",
    "planner": "%",
    "data": "@",
    "late": "!",
}
_KINDS = {"F": "forward", "B": "backward", "W": "weight gradients"}
#: How sentences about a group of bubbles go on after "waits … s (… %)" or "idles".
_PHRASES: Mapping[str, str] = {
    "ramp-up": "waits {seconds} to begin, for {task}",
    "peer": "waits {seconds} for {task}",
    "transfer": "waits {seconds} for messages from {task}",
    "memory": "idles {seconds} because memory keeps back {task}",
    "order": "idles {seconds} where the schedule could have run {task}",
    "imbalance": "waits {seconds} for {task}, because rank {other} has more to do in all",
    "uneven": "waits {seconds} for {task}, as far as that is longer than in a mean microbatch",
    "ramp-down": "is done {seconds} before the batch ends, with {task}",
}
#: Sentences about what bubbles are due to.
MOST_SENTENCES = 8
WIDTH = 100


def seconds_of(value: float) -> str:
    """Seconds as people read them."""
    if abs(value) >= 0.0995 or value == 0:
        return f"{value:.3g} s" if abs(value) < 1000 else f"{value:.0f} s"
    return f"{1e3 * value:.3g} ms" if abs(value) >= 0.9995e-4 else f"{1e6 * value:.3g} us"


def bytes_of(value: float) -> str:
    """Bytes as people read them."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"


def sentences(problem: Problem, found: Explanation, bound: float | None = None) -> list[str]:
    """What there is to know first: makespan, critical path, causes, and what is blamed most."""
    return [_whole(found, bound), _path(problem, found), *_causes(found), *_blamed(problem, found)]


def _whole(found: Explanation, bound: float | None) -> str:
    ranks, work = len(found.work), math.fsum(found.work)
    what = "step took" if found.measured else "makespan is"
    text = (
        f"the {what} {seconds_of(found.makespan)}: {ranks} ranks work {seconds_of(work)} of "
        f"{seconds_of(ranks * found.makespan)}, {found.bubble:.1%} is bubble"
    )
    if bound is not None and bound > 0:
        text += f"; no schedule of this problem is below {seconds_of(bound)} ({found.makespan / bound - 1:.1%} over it)"
    return text


def _path(problem: Problem, found: Explanation) -> str:
    """The critical path by what its time is made of."""
    tasks = {task.id: task for task in problem.tasks}
    parts: dict[str, float] = defaultdict(float)
    for link in found.critical_path:
        task = tasks[link.task]
        parts[f"{task.module} {_KINDS[task.kind]}"] += link.end - link.start
        parts["messages"] += link.transfer
        parts["lateness"] += link.late
    parts["what follows the last task"] = found.ending
    shown = [
        f"{name} {seconds_of(own)} ({own / found.makespan:.0%})"
        for name, own in sorted(parts.items(), key=lambda item: -item[1])
        if own > 1e-9 * found.makespan
    ]
    ranks = len({link.rank for link in found.critical_path})
    memory = sum(link.reason == "memory" for link in found.critical_path)
    more = f"; {memory} of its tasks had to wait for memory" if memory else ""
    return f"critical path: {len(found.critical_path)} tasks on {ranks} ranks: {', '.join(shown)}{more}"


def _causes(found: Explanation) -> Iterator[str]:
    """One line a cause, the largest first."""
    totals = found.totals()
    every = math.fsum(totals.values())
    for cause, own in sorted(totals.items(), key=lambda item: -item[1]):
        yield f"{cause}: {seconds_of(own)}, {own / every:.0%} of all bubbles: a rank {CAUSES[cause]}"


def _blamed(problem: Problem, found: Explanation) -> Iterator[str]:
    """The largest groups of bubbles of one rank and cause, by the stage that is blamed."""
    tasks = {task.id: task for task in problem.tasks}
    groups: dict[tuple[int, str, int, str, str], list[Bubble]] = defaultdict(list)
    for bubble in found.bubbles:
        if bubble.task is not None and bubble.cause in _PHRASES:
            task = tasks[bubble.task]
            groups[bubble.rank, bubble.cause, task.rank, task.kind, task.module].append(bubble)
    sums = {key: math.fsum(bubble.seconds for bubble in own) for key, own in groups.items()}
    for key in sorted((own for own in sums if sums[own] > 0), key=lambda own: (-sums[own], own))[:MOST_SENTENCES]:
        rank, cause, other, *_ = key
        share = f"{seconds_of(sums[key])} ({sums[key] / max(found.idle(rank), sums[key]):.0%} of its bubbles)"
        whose = _tasks(groups[key], tasks, "" if other == rank else f" on rank {other}")
        yield f"rank {rank} " + _PHRASES[cause].format(seconds=share, task=whose, other=other)


def _tasks(bubbles: list[Bubble], tasks: Mapping[int, Task], where: str) -> str:
    """The tasks of one stage's kind that bubbles blame, the worst of them by name."""
    by_task: dict[int, float] = defaultdict(float)
    for bubble in bubbles:
        assert bubble.task is not None
        by_task[bubble.task] += bubble.seconds
    worst = max(by_task, key=lambda own: (by_task[own], -own))
    task = tasks[worst]
    if len(by_task) == 1:
        return f"{name_of(task)}{where}"
    return (
        f"{len(by_task)} {task.module} {_KINDS[task.kind]}{'' if task.kind == 'W' else 's'}{where}, most for "
        f"microbatch {task.microbatch}, {seconds_of(by_task[worst])}"
    )


def name_of(task: Task) -> str:
    """A task by what it does."""
    sub = f", sub-microbatch {task.sub}" if task.sub else ""
    return f"the {task.module} {_KINDS[task.kind]} of microbatch {task.microbatch}{sub} (chunk {task.chunk})"


def path_lines(problem: Problem, found: Explanation, most: int = 40) -> list[str]:
    """The critical path by name, runs of one rank, kind and module in a line, without its middle beyond ``most``."""
    tasks = {task.id: task for task in problem.tasks}

    def key(link: Link) -> tuple[int, str, str]:
        task = tasks[link.task]
        return task.rank, task.kind, task.module

    lines = []
    for (rank, kind, module), run in groupby(found.critical_path, key):
        links = list(run)
        microbatches = list(dict.fromkeys(str(tasks[link.task].microbatch) for link in links))
        which = ", ".join(microbatches) if len(microbatches) <= 6 else f"{microbatches[0]} … {microbatches[-1]}"
        after = links[0]
        why = f"after {seconds_of(after.transfer)} of message" if after.reason == "transfer" else f"by {after.reason}"
        lines.append(
            f"{seconds_of(after.start):>9} to {seconds_of(links[-1].end):>9}  rank {rank}: {len(links)} x {module} "
            f"{_KINDS[kind]} of microbatch {which} ({why})"
        )
    if len(lines) > most:
        half = most // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half} more …", *lines[-half:]]
    return lines


def drawing(
    problem: Problem, found: Explanation, spans: Mapping[int, tuple[float, float]], width: int = WIDTH
) -> list[str]:
    """A line a rank: f, b and w for tasks by kind, capitals on the critical path, and ``MARKS`` for bubbles.

    ``spans`` are start and end of every task. A column shows what fills most of its time.
    """
    critical = {link.task for link in found.critical_path}
    column = found.makespan / width if found.makespan else 1.0
    filled = [[defaultdict[str, float](float) for _ in range(width)] for _ in found.work]

    def fill(rank: int, mark: str, start: float, end: float) -> None:
        for place in range(min(width - 1, int(start / column)), min(width, math.ceil(end / column))):
            filled[rank][place][mark] += max(0.0, min(end, (place + 1) * column) - max(start, place * column))

    for task in problem.tasks:
        letter = task.kind if task.id in critical else task.kind.lower()
        fill(task.rank, letter, *spans[task.id])
    for bubble in found.bubbles:
        fill(bubble.rank, MARKS[bubble.cause], bubble.start, bubble.end)
    names = [f"rank {rank} " for rank in range(len(filled))]
    wide = max(map(len, names), default=0)
    lines = [
        name.ljust(wide) + "".join(max(own, key=lambda mark: own[mark]) if own else " " for own in row)
        for name, row in zip(names, filled, strict=True)
    ]
    used = [cause for cause in CAUSES if any(bubble.cause == cause for bubble in found.bubbles)]
    legend = ", ".join(f"{MARKS[cause]} {cause}" for cause in used)
    return [*lines, f"{'':{wide}}F B W on the critical path, f b w not; {legend}"]
