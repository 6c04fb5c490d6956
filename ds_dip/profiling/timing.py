"""Repeated measurements on the device's own clock, until their median is known well enough."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deepspeed.accelerator import get_accelerator

from ds_dip.costs.table import Seconds

#: Standard error of a median over the median that is good enough.
STANDARD_ERROR = 0.02
#: Fewest and most repeats.
FEWEST, MOST = 12, 2000


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one thing is repeated: ``least`` seconds, so that all ranks keep each other company, and ``most``."""

    least: float = 0.03
    most: float = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    """Repeated seconds of one thing."""

    values: tuple[float, ...]

    @property
    def seconds(self) -> Seconds:
        """Median and interquartile range."""
        lower, middle, upper = statistics.quantiles(self.values, n=4, method="inclusive")
        return Seconds(middle, upper - lower)

    @property
    def error(self) -> float:
        """Standard error of the median over the median, of normal noise with this interquartile range."""
        seconds = self.seconds
        if seconds.median <= 0:
            return 0.0
        return 1.2533 * (seconds.spread / 1.349) / math.sqrt(len(self.values)) / seconds.median


def has_events() -> bool:
    """Whether the device is asynchronous and times itself by events."""
    return not bool(get_accelerator().is_synchronized_device())


def clock_name() -> str:
    """What measures here."""
    name: str = get_accelerator().device_name()
    return f"{name} events" if has_events() else "time.perf_counter (monotonic)"


def timed(run: Callable[[], object]) -> float:
    """Seconds of a run: between two events of the device, or on a monotonic clock where it runs synchronously."""
    if not has_events():
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    accelerator = get_accelerator()
    start, end = accelerator.Event(enable_timing=True), accelerator.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000.0


def repeat(once: Callable[[], Sequence[float]], patience: Patience, warm_up: int = 2) -> tuple[Sample, ...]:
    """Repeat ``once``, which gives the seconds of one or more parts, until all medians are known within 2 %.

    Or until the patience has ended, which ``note`` tells.
    """
    for _ in range(warm_up):
        once()
    began, columns = time.monotonic(), [list[float]() for _ in once()]
    while True:
        for column, seconds in zip(columns, once(), strict=True):
            column.append(seconds)
        spent, repeats = time.monotonic() - began, len(columns[0])
        if repeats < FEWEST or (spent < patience.least and repeats < MOST):
            continue
        samples = tuple(Sample(tuple(column)) for column in columns)
        # Every look costs a sort, which must not become what is measured.
        if spent >= patience.most or repeats >= MOST:
            return samples
        if repeats % 8 == 0 and all(sample.error <= STANDARD_ERROR for sample in samples):
            return samples


def note(samples: Sequence[Sample], patience: Patience) -> str:
    """Why the medians are not known within 2 %; empty where they are."""
    worst = max(sample.error for sample in samples)
    if worst <= STANDARD_ERROR:
        return ""
    return (
        f"standard error {100 * worst:.1f} % after {len(samples[0].values)} repeats in {patience.most:g} s: "
        "the machine is not quiet"
    )
