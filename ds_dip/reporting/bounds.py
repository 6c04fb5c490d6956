"""What the numbers of a timeline may be: beyond that a file is damaged, and no trace can be made of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ds_dip.reporting.timeline import StepTimeline

#: More ranks than any pipeline has, and more seconds than any batch takes.
MOST_RANKS, MOST_SECONDS = 65536, 1e9


def bounds(timeline: StepTimeline) -> Iterator[tuple[str, float, float, float]]:
    """Every number that has bounds: its field, itself, the least and the greatest that it may be."""
    yield "step", timeline.step, 0, math.inf
    yield "ranks", timeline.ranks, 1, MOST_RANKS
    last = timeline.ranks - 1
    for name in ("waited_s", "iteration_s", "planned_iteration_s"):
        yield name, getattr(timeline, name) or 0.0, 0.0, MOST_SECONDS
    if timeline.loading_s is not None:
        yield "length of loading_s", len(timeline.loading_s), timeline.ranks, timeline.ranks
        for rank, own in enumerate(timeline.loading_s):
            yield f"loading_s.{rank}", own, 0.0, MOST_SECONDS
    for part, track in (("planned", timeline.planned), ("measured", timeline.measured)):
        if track is None:
            continue
        for number, stage in enumerate(track.stages):
            where = f"{part}.stages.{number}"
            yield f"{where}.rank", stage.rank, 0, last
            for name in ("chunk", "microbatch", "sub"):
                yield f"{where}.{name}", getattr(stage, name), 0, math.inf
            yield f"{where}.tokens", stage.tokens or 0, 0, math.inf
            # Clocks of other machines are set once, so a stage may seem to start before its batch.
            yield f"{where}.start_s", stage.start_s, -MOST_SECONDS, MOST_SECONDS
            yield f"{where}.end_s", stage.end_s, stage.start_s, MOST_SECONDS
        for number, transfer in enumerate(track.transfers):
            where = f"{part}.transfers.{number}"
            yield f"{where}.sender", transfer.sender, 0, last
            yield f"{where}.receiver", transfer.receiver, 0, last
            yield f"{where}.order", transfer.order, 0, math.inf
            yield f"{where}.bytes", transfer.bytes, 0, math.inf
            yield f"{where}.start_s", transfer.start_s, -MOST_SECONDS, MOST_SECONDS
            yield f"{where}.end_s", transfer.end_s, transfer.start_s, MOST_SECONDS
        for number, sample in enumerate(track.memory):
            where = f"{part}.memory.{number}"
            yield f"{where}.rank", sample.rank, 0, last
            yield f"{where}.at_s", sample.at_s, -MOST_SECONDS, MOST_SECONDS
