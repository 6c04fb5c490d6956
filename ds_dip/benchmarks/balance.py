"""``ds-dip bench balance``: how even, and how fast, samples are put into microbatches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ds_dip.balancing import METHODS, Loads, balance, lower_bound
from ds_dip.balancing.exact import prove
from ds_dip.balancing.problem import Floats, in_shares
from ds_dip.data.metadata import SampleMetadata
from ds_dip.scheduling.benchmark import machine

#: Samples a microbatch where nothing else is said.
SAMPLES = 16
#: Global batches that a dataset is drawn in.
SIZES = (64, 128, 256, 512, 1024, 2048)
_RUNS = 7


def token_shares(samples: Sequence[SampleMetadata]) -> tuple[tuple[str, ...], Floats]:
    """(modules, (samples, modules)): tokens of each module, in shares of all its tokens.

    DFLOP's optimizer gives modules as many devices as make them equally slow; then these are shares of seconds.
    """
    modules = tuple(dict.fromkeys(name for sample in samples for name in sample.modules))
    tokens = np.array([[sum(sample.modules.get(name, ())) for name in modules] for sample in samples], dtype=np.float64)
    return modules, in_shares(tokens)


def measure(
    shares: Floats,
    modules: Sequence[str],
    unit: str,
    sizes: Sequence[int],
    microbatches: int | None,
    exact: float | None,
) -> dict[str, Any]:
    """Balance the first samples of each size into microbatches; the last, and largest, is what the headline says.

    ``unit`` says what the shares are of, tokens or seconds; ``exact`` are seconds that CP-SAT has for each size.
    """
    rows = [_row(shares[:size], microbatches or max(1, size // SAMPLES), exact) for size in sizes]
    last = rows[-1]
    return {
        "machine": machine(),
        "modules": list(modules),
        "unit": unit,
        **{name: last[name] for name in ("samples", "microbatches", "milliseconds", "over_bound", "method")},
        "sizes": rows,
    }


def _row(seconds: Floats, microbatches: int, exact: float | None) -> dict[str, Any]:
    def loads() -> Loads:
        return Loads(seconds, microbatches)

    own = loads()
    bound = lower_bound(own)
    found = balance(own)
    row: dict[str, Any] = {
        "samples": own.items,
        "microbatches": microbatches,
        "milliseconds": _milliseconds(lambda: balance(loads())),
        "over_bound": _over(found.makespan, bound),
        "method": found.method,
        "compared": {
            name: {
                "milliseconds": _milliseconds(lambda method=method: method(loads())),
                "over_bound": _over(own.fullest(method(own)), bound),
            }
            for name, method in METHODS.items()
        },
    }
    if exact is not None:
        began = time.perf_counter()
        proved = prove(own, found, exact)
        row["exact"] = {
            "milliseconds": 1e3 * (time.perf_counter() - began),
            "over_bound": _over(proved.makespan, bound),
            "bound_raised": _over(proved.lower_bound, bound),
        }
    return row


def _over(makespan: float, bound: float) -> float:
    return makespan / bound if bound > 0 else 1.0


def _milliseconds(run: Any) -> float:
    """The median of some runs, the first of which compiles and is not counted."""
    run()
    taken = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        run()
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)
