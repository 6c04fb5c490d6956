"""Contenders measured in turn, a block of iterations each, so that a machine's moods touch all of them alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from deepspeed import comm as dist

from ds_dip.ranks import tell


@dataclass(frozen=True, slots=True)
class Blocks:
    """Per contender one number a block, all in seconds an iteration.

    ``seconds`` are those of the clock, ``cpu`` the processor's for all ranks, ``busiest`` the processor's for the rank
    that takes most of an iteration: what an iteration would last where every rank had a core for itself and none waited
    for another before its end.
    """

    seconds: Mapping[str, tuple[float, ...]]
    cpu: Mapping[str, tuple[float, ...]]
    busiest: Mapping[str, tuple[float, ...]]


def interleave(contenders: Mapping[str, Callable[[], Any]], blocks: int, iterations: int) -> Blocks:
    """Run every contender's iteration ``iterations`` times a block, contenders in turn, every second round backwards.

    All ranks call it together. A block's first iteration is not counted: what the contender before leaves behind, in
    caches and in processes that plan ahead, ends there.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    busiest: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(blocks):
        if dist.get_rank() == 0:
            tell({"done": number, "total": blocks})
        names = list(contenders)
        for name in names if number % 2 == 0 else reversed(names):
            run = contenders[name]
            run()
            dist.barrier()
            began, worked = time.monotonic(), [time.process_time()]
            for _ in range(iterations):
                run()
                worked.append(time.process_time())
            dist.barrier()
            own = [end - start for start, end in pairwise(worked)]
            took = torch.tensor([time.monotonic() - began, *own], dtype=torch.float64)
            gathered = [torch.zeros_like(took) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, took)
            spent = torch.stack(gathered)
            seconds[name].append(float(spent[:, 0].max()) / iterations)
            cpu[name].append(float(spent[:, 1:].sum()) / iterations)
            busiest[name].append(float(spent[:, 1:].max(dim=0).values.sum()) / iterations)
    return Blocks(*({name: tuple(own) for name, own in kept.items()} for kept in (seconds, cpu, busiest)))


def marking(run: Callable[..., Any], marks: list[tuple[float, float]]) -> Callable[..., Any]:
    """``run``, noting in ``marks`` when each call started and ended."""

    def marked(*arguments: Any, **named: Any) -> Any:
        start = time.monotonic()
        result = run(*arguments, **named)
        marks.append((start, time.monotonic()))
        return result

    return marked


def idle_share(marks: Sequence[tuple[float, float]]) -> float:
    """The share of ranks times span without a stage, from each rank's (start, end) of its stages; all ranks call it."""
    busy = sum(end - start for start, end in marks)
    row = torch.tensor([marks[0][0], marks[-1][1], busy], dtype=torch.float64)
    rows = [torch.zeros_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    span = max(float(r[1]) for r in rows) - min(float(r[0]) for r in rows)
    return 1.0 - sum(float(r[2]) for r in rows) / (len(rows) * span)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "lower_quartile": values[0], "upper_quartile": values[0]}
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "lower_quartile": lower, "upper_quartile": upper}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of the blocks' ratios, block by block."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def machine() -> dict[str, Any]:
    """Where it is measured: cores, threads a rank, torch, and the load over the last minute."""
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d"),
    }
