"""Draws the pictures of docs/concepts.md from schedules that ds_dip finds: python launch/pictures.py [FOLDER]."""

from __future__ import annotations

import sys
from pathlib import Path

from ds_dip.files import write_atomic
from ds_dip.reporting.picture import Box, Panel, svg
from ds_dip.scheduling import Problem, Schedule, Task, one_f_one_b, retime, solve

RANKS = 4
#: Images of each microbatch; what a forward takes of the encoder for an image, and of the language model, in all.
IMAGES = (9, 2, 0, 5, 1, 7)
IMAGE, LANGUAGE = 0.8, 8.0
#: A chain of chunks: (module, rank, share of the module's work).
Chain = list[tuple[str, int, float]]
#: What a pipeline that knows one chain does: the encoder is a stage before the language model's.
ONE_CHAIN: Chain = [("vision", 0, 1.0), *(("language", rank, 1 / 3) for rank in range(1, RANKS))]
#: Every module on all ranks.
SEPARATED: Chain = [(name, rank, 1 / RANKS) for name in ("vision", "language") for rank in range(RANKS)]


def problem(chain: Chain) -> Problem:
    """A batch on such a chain: a backward takes twice its forward, and messages take no time."""
    tasks, edges = [], []
    last = 2 * len(chain) - 1
    for microbatch, images in enumerate(IMAGES):
        first = microbatch * (last + 1)
        work = {"vision": IMAGE * images, "language": LANGUAGE}
        for number in range(last + 1):
            chunk = min(number, last - number)
            module, rank, share = chain[chunk]
            kind = "F" if number < len(chain) else "B"
            duration = work[module] * share * (1 if kind == "F" else 2)
            tasks.append(Task(first + number, rank, kind, module, chunk, 0, microbatch, 0, duration))
        edges += [(first + number, first + number + 1, 0.0) for number in range(last)]
    return Problem(RANKS, (None,) * RANKS, tuple(tasks), tuple(edges))


def panel(title: str, given: Problem, schedule: Schedule) -> Panel:
    """A schedule of a problem as a panel, its makespan and idle share in the title."""
    times = retime(given, schedule)
    boxes = [
        Box(task.rank, times.start[task.id], times.end[task.id], task.kind, task.module, str(task.microbatch))
        for task in given.tasks
        if task.duration
    ]
    drawn = Panel("", given.ranks, boxes)
    return Panel(f"{title}: {drawn.end:.1f}, {drawn.idle:.0%} idle", given.ranks, boxes)


def placements() -> str:
    """Looped and zigzag laps of two chunks a rank, as if chunks ran one after the other."""
    drawn = []
    for name, order in (("looped", [0, 1, 2, 3, 0, 1, 2, 3]), ("zigzag", [0, 1, 2, 3, 3, 2, 1, 0])):
        boxes = [
            Box(rank, float(chunk), chunk + 1.0, "F" if chunk < RANKS else "B", "lap", f"chunk {chunk}")
            for chunk, rank in enumerate(order)
        ]
        drawn.append(Panel(f"{name}: where the chunks of one module with K = 2 live", RANKS, boxes))
    return svg(drawn).replace("lap, forward", "first lap").replace("lap, backward", "second lap")


def main() -> None:
    """Write the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "pictures"
    chained, separated = problem(ONE_CHAIN), problem(SEPARATED)
    found = solve(separated, evaluations=20000, seed=0).schedule
    assert found is not None
    batch = [
        panel("one chain, 1F1B", chained, one_f_one_b(chained)),
        panel("every module on all ranks, 1F1B", separated, one_f_one_b(separated)),
        panel("every module on all ranks, an order for this batch", separated, found),
    ]
    write_atomic(folder / "batch.svg", svg(batch))
    write_atomic(folder / "placements.svg", placements())


if __name__ == "__main__":
    main()
