"""What DIP's paper (arXiv 2504.14145) says, as data: figures with the place that they are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAPER = "DIP, arXiv 2504.14145"
#: A figure of ours that is off by more than this share is told on the report's first page.
TOLERANCE = 0.15


@dataclass(frozen=True, slots=True)
class Figure:
    """A published speed: throughput over a reference, 1.17 for 17 % more, and where it says so."""

    what: str
    speedup: float
    source: str


def _step(what: str, seconds: float) -> Figure:
    return Figure(what, ABLATION_SECONDS["megatron"] / seconds, "ablation on VLM-S, seconds of an iteration")


#: Seconds of an iteration of VLM-S on 16 H800, each row with all that the rows above it have.
ABLATION_SECONDS: Mapping[str, float] = {
    "megatron": 26.13,
    "partitioner": 22.27,
    "interleaving": 18.81,
    "reordering": 17.61,
    "memory": 16.05,
}
ABLATION: Mapping[str, Figure] = {
    name: _step(f"VLM-S, {name} over Megatron", seconds)
    for name, seconds in ABLATION_SECONDS.items()
    if name != "megatron"
}
#: How many times as heavy as the lightest the heaviest packed batch is.
UNEVENNESS = 4.15
_END_TO_END = "end-to-end throughput, range over models and baselines"
#: By family of models: least and largest throughput of DIP over any of the baselines.
END_TO_END: Mapping[str, tuple[Figure, Figure]] = {
    "VLM": (
        Figure("VLM, least gain over a baseline", 1.156, _END_TO_END),
        Figure("VLM, largest gain over a baseline", 1.762, _END_TO_END),
    ),
    "T2V": (
        Figure("T2V, least gain over a baseline", 1.366, _END_TO_END),
        Figure("T2V, largest gain over a baseline", 1.973, _END_TO_END),
    ),
}
#: Seconds of an iteration of VLM-S on 16 H20.
H20_SECONDS: Mapping[str, float] = {"fsdp": 40.270, "megatron": 39.053, "dip": 28.606}
H20: Mapping[str, Figure] = {
    name: Figure(f"VLM-S on H20, DIP over {title}", H20_SECONDS[name] / H20_SECONDS["dip"], "table of H20, seconds")
    for name, title in (("fsdp", "FSDP"), ("megatron", "Megatron"))
}
