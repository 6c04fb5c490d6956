"""What DFLOP's paper (arXiv 2603.25120) says, as data: figures with the place that they are from."""

from __future__ import annotations

from collections.abc import Mapping

from ds_dip.reproduction.published import SECONDS, SHARE, Figure

PAPER = "DFLOP, arXiv 2603.25120"
_ENDS = "end-to-end throughput on up to 8 nodes, range over models and baselines"
#: Least and largest throughput of DFLOP over a baseline.
SPEEDS = (
    Figure("least throughput of DFLOP over a baseline", 1.2, _ENDS),
    Figure("largest throughput of DFLOP over a baseline", 3.6, _ENDS),
)
SPOKEN = (
    Figure("Qwen2-Audio, least throughput of DFLOP over a baseline", 2.0, "audio"),
    Figure("Qwen2-Audio, largest throughput of DFLOP over a baseline", 4.0, "audio"),
)
#: Which of the two reductions is over which baseline is an assumption.
IDLE: Mapping[str, Figure] = {
    "megatron": Figure("idle time of DFLOP, to the Megatron-like baseline's", 1 - 0.82, "idle time"),
    "pytorch": Figure("idle time of DFLOP, to the PyTorch-like baseline's", 1 - 0.84, "idle time"),
}
_QUALITY = "scheduler, global batches of 64 to 2048"
LISTED = Figure("longest first over the lower bound, largest batch", 0.01, _QUALITY, SHARE, limit=True)
BALANCING = Figure("seconds to balance the largest batch", 1.0, _QUALITY, SECONDS, limit=True)
_TIMES = "optimizer's time"
CLOSED = Figure("seconds of the paper's objective over all layouts, 64 GPUs", 0.0037, _TIMES, SECONDS, limit=True)
LARGEST = Figure("the same, 1024 GPUs", 0.2, _TIMES, SECONDS, limit=True)
