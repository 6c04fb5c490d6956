"""A step's timeline as a Chrome trace, which Perfetto and chrome://tracing show.

A process a rank, planned and measured ones apart; in it a thread for compute and one for each
link on which the rank sends, flow arrows from stage to stage through the link, and a counter of
activation memory. Trace times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ds_dip.explaining import Bubble
from ds_dip.files import write_json
from ds_dip.programs.program import Stage
from ds_dip.reporting.timeline import StepTimeline, Track, TransferInterval

Event = dict[str, Any]

#: Process 1 is the batch as a whole; viewers keep 0, of processes and threads, for themselves.
BATCH = 1
COMPUTE = 1
_THREADS = 1000
#: The last thread of a process: links come before it.
_BUBBLES = _THREADS - 1
_MICROSECONDS = 1e6
#: An arrow leaves inside its slice: a point at its very end belongs to whatever comes next.
_INSIDE = 1e-3


def write_trace(
    path: str | Path, timeline: StepTimeline, planned: Sequence[Bubble] = (), measured: Sequence[Bubble] = ()
) -> None:
    """Write the trace of a step, atomically."""
    write_json(path, trace(timeline, planned, measured))


def trace(timeline: StepTimeline, planned: Sequence[Bubble] = (), measured: Sequence[Bubble] = ()) -> dict[str, Any]:
    """The trace of a step as a document in Chrome's trace event format, with what is known of its bubbles.

    The times of ``planned`` ones are from the plan's first stage, of ``measured`` ones from the batch's start.
    """
    shift = min((stage.start_s for stage in timeline.planned.stages), default=0.0)
    events = [*_batch(timeline), *_bubbles(planned, BATCH + 1, shift)]
    events += _bubbles(measured, BATCH + 1 + timeline.ranks, 0.0)
    for group, (name, track) in enumerate((("planned", timeline.planned), ("measured", timeline.measured))):
        if track is not None:
            events += _track(name, track, BATCH + 1 + group * timeline.ranks, timeline.ranks)
    about = {
        "step": timeline.step,
        "kind": timeline.kind,
        "reason": timeline.reason,
        "schedule": timeline.schedule,
        "clock": timeline.clock,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _batch(timeline: StepTimeline) -> Iterator[Event]:
    """The measured batch as a whole, where it was measured."""
    if timeline.measured is None or timeline.iteration_s is None:
        return
    yield from _process(BATCH, f"step {timeline.step}: {timeline.kind} {timeline.schedule}")
    yield _thread(BATCH, COMPUTE, "batch")
    start = min((stage.start_s for stage in timeline.measured.stages), default=0.0)
    end = max((stage.end_s for stage in timeline.measured.stages), default=start)
    waited = min(timeline.waited_s or 0.0, start)
    yield _slice(BATCH, COMPUTE, "iteration", 0.0, timeline.iteration_s, {"reason": timeline.reason})
    yield _slice(BATCH, COMPUTE, "wait for the plan", 0.0, waited)
    yield _slice(BATCH, COMPUTE, "stages", start, end)
    yield _slice(BATCH, COMPUTE, "reduction and step", end, timeline.iteration_s)


def _bubbles(bubbles: Sequence[Bubble], first: int, shift: float) -> Iterator[Event]:
    """Bubbles by cause, in the last thread of every rank; ``first`` is the process of rank 0."""
    for rank in sorted({bubble.rank for bubble in bubbles}):
        yield _thread(first + rank, _BUBBLES, "bubbles")
    for own in bubbles:
        details = {} if own.task is None else {"task": own.task}
        slice_ = _slice(first + own.rank, _BUBBLES, own.cause, own.start + shift, own.end + shift, details)
        yield {**slice_, "cat": "bubble"}


def _track(group: str, track: Track, first: int, ranks: int) -> Iterator[Event]:
    """One group of processes, ``first`` that of rank 0."""
    links = sorted({(transfer.sender, transfer.receiver) for transfer in track.transfers})
    threads = {link: COMPUTE + 1 + number for number, link in enumerate(links)}
    for rank in range(ranks):
        yield from _process(first + rank, f"{group} rank {rank}")
        yield _thread(first + rank, COMPUTE, "compute")
    for (sender, receiver), thread in threads.items():
        yield _thread(first + sender, thread, f"link to rank {receiver}")
    for interval in track.stages:
        name = f"{interval.kind} {interval.module} {interval.microbatch}.{interval.sub} chunk {interval.chunk}"
        details = {
            "module": interval.module,
            "chunk": interval.chunk,
            "microbatch": interval.microbatch,
            "sub": interval.sub,
        }
        yield _slice(first + interval.rank, COMPUTE, name, interval.start_s, interval.end_s, details)
    at = {interval.stage: interval for interval in track.stages}
    for number, (transfer, start, end) in enumerate(_in_order(track.transfers)):
        process, thread = first + transfer.sender, threads[transfer.sender, transfer.receiver]
        kind, module, _, microbatch, sub = transfer.source
        details = {"bytes": transfer.bytes, "order": transfer.order}
        yield _slice(process, thread, f"{kind} {module} {microbatch}.{sub}", start, end, details)
        source, target = at.get(Stage(*transfer.source)), at.get(Stage(*transfer.target))
        if source is None or target is None:
            continue
        flow = {"name": "transfer", "cat": group, "id": f"{group} {number}"}
        leave = source.end_s - _INSIDE * (source.end_s - source.start_s)
        yield {**flow, "ph": "s", **_at(first + source.rank, COMPUTE, leave)}
        yield {**flow, "ph": "t", **_at(process, thread, start)}
        yield {**flow, "ph": "f", "bp": "e", **_at(first + target.rank, COMPUTE, target.start_s)}
    for sample in track.memory:
        where = _at(first + sample.rank, COMPUTE, sample.at_s)
        yield {"ph": "C", "name": "activations", **where, "args": {"bytes": sample.bytes}}


def _in_order(transfers: Iterable[TransferInterval]) -> Iterator[tuple[TransferInterval, float, float]]:
    """Transfers with the time they have their link for themselves: it carries one after the other."""
    free: dict[tuple[int, int], float] = {}
    for transfer in sorted(transfers, key=lambda t: (t.sender, t.receiver, t.order)):
        link = transfer.sender, transfer.receiver
        start = max(transfer.start_s, free.get(link, transfer.start_s))
        free[link] = end = max(start, transfer.end_s)
        yield transfer, start, end


def _at(process: int, thread: int, seconds: float) -> Event:
    return {"pid": process, "tid": process * _THREADS + thread, "ts": seconds * _MICROSECONDS}


def _slice(
    process: int, thread: int, name: str, start: float, end: float, details: dict[str, Any] | None = None
) -> Event:
    length = max(0.0, end - start) * _MICROSECONDS
    return {"ph": "X", "name": name, **_at(process, thread, start), "dur": length, "args": details or {}}


def _process(process: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}


def _thread(process: int, thread: int, name: str) -> Event:
    tid = process * _THREADS + thread
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": tid, "args": {"name": name}}
