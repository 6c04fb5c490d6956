"""Numbers as people read them."""

from __future__ import annotations

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def seconds(value: float, unitless: bool = False) -> str:
    """Seconds in the unit that they are read in; a plain number where they have none."""
    if unitless:
        return f"{value:.4g}"
    for size, unit in _TIMES:
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value / _TIMES[-1][0]:.3g} {_TIMES[-1][1]}"


def share(value: float) -> str:
    """A share in per cent."""
    return f"{100 * value:.1f} %"


def difference(measured: float, planned: float) -> str:
    """How much longer ``measured`` is than ``planned``, in per cent."""
    return "not known" if planned <= 0 else f"{100 * (measured / planned - 1):+.1f} %"


def size(ranks: int, microbatches: int, stages: int) -> str:
    """How large a batch's pipeline is."""
    counts = ((ranks, "rank"), (microbatches, "microbatch"), (stages, "stage"))
    plural = {"microbatch": "microbatches"}
    return ", ".join(f"{count:,} {name if count == 1 else plural.get(name, name + 's')}" for count, name in counts)
