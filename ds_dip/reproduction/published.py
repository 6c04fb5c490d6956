"""What DIP's paper (arXiv 2504.14145) says, as data: figures with the place that they are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PAPER = "DIP, arXiv 2504.14145"
#: A figure of ours that is off by more than this share is told on the report's first page.
TOLERANCE = 0.15
#: What a figure is: throughput over a reference (1.17 is 17 % more), a share (0.17 is 17 %), seconds, or a count.
SPEED, SHARE, SECONDS, COUNT = UNITS = ("speed", "share", "seconds", "count")


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure and where the paper has it; ``value`` is None where it is not known.

    Where it is a ``limit``, the paper says no more than that it is at most this.
    """

    what: str
    value: float | None
    source: str
    unit: str = SPEED
    limit: bool = False


#: Seconds of an iteration of VLM-S on 16 H800, each row with all that the rows above it have.
ABLATION_SECONDS: Mapping[str, float] = {
    "megatron": 26.13,
    "partitioner": 22.27,
    "interleaving": 18.81,
    "reordering": 17.61,
    "memory": 16.05,
}
_ABLATION = "ablation on VLM-S"
ABLATION: Mapping[str, Figure] = {
    name: Figure(f"VLM-S, {name} over Megatron", ABLATION_SECONDS["megatron"] / seconds, _ABLATION)
    for name, seconds in ABLATION_SECONDS.items()
    if name != "megatron"
}
ABLATED: Mapping[str, Figure] = {
    name: Figure(f"VLM-S, {name}, seconds of an iteration", seconds, _ABLATION, SECONDS)
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
_H20 = "table of H20"
H20: Mapping[str, Figure] = {
    name: Figure(f"VLM-S on H20, DIP over {title}", H20_SECONDS[name] / H20_SECONDS["dip"], _H20)
    for name, title in (("fsdp", "FSDP"), ("megatron", "Megatron"))
}
H20_TIMES: Mapping[str, Figure] = {
    name: Figure(f"VLM-S on H20, {title}, seconds of an iteration", H20_SECONDS[name], _H20, SECONDS)
    for name, title in (("fsdp", "FSDP"), ("megatron", "Megatron"), ("dip", "DIP"))
}
#: At the iteration with most images: how much longer a system takes than DIP.
PEAK: Mapping[str, Figure] = {
    name: Figure(f"most images, DIP over {title}", value, "images that vary over 40 iterations")
    for name, title, value in (
        ("megatron", "Megatron", 1.529),
        ("static", "a static plan", 1.104),
        ("optimus", "coarse Optimus", 1.104),
    )
}
_CUTS = "sizes of sub-microbatches"
SPREADS: Mapping[str, Figure] = {
    "wide": Figure("spread from the best to the worst schedule, whole microbatches", 0.154, _CUTS, SHARE),
    "narrow": Figure("the same, sub-microbatches of 12 images", 0.051, _CUTS, SHARE),
}
BEST_CUT = Figure("images in the best sub-microbatch", 12.0, _CUTS, COUNT)
SMALL_CUT = Figure("sub-microbatches below 8 images (4), time more than by the best size", 0.121, _CUTS, SHARE)
SEARCH = Figure("seconds of a search (there by 64 workers)", 10.0, "search against exact solvers", SECONDS, limit=True)
PROVEN = Figure("most microbatches that an exact solver finishes", 10.0, "search against exact solvers", COUNT)
_MEMORY = "memory over time"
FLUCTUATION = Figure("VLM-S, memory that comes and goes, DIP's to Megatron's", 1 - 0.529, _MEMORY)
EQUAL_PEAK = Figure("VLM-S, DIP over coarse Optimus at equal peak", 1.122, _MEMORY)
_MOTIVATION = "motivation, 16 stages and 64 microbatches"
BUBBLE: Mapping[str, Figure] = {
    "spread": Figure("slowest over fastest stage of the best static split", 0.167, _MOTIVATION, SHARE),
    "total": Figure("bubble of the best static split, total", 0.228, _MOTIVATION, SHARE),
    "balanced": Figure("bubble that perfect balance would leave", 0.190, _MOTIVATION, SHARE),
}
_SCALE = "large scale, simulated"


def utilisation(name: str, devices: int) -> Figure:
    """The utilisation (MFU) of a large model under DIP, which is not known from the paper."""
    return Figure(f"{name} on {devices} H100, MFU of DIP", None, _SCALE, SHARE)
