"""The systems that are compared, by name: titles, and how each runs on a case."""

from __future__ import annotations

from collections.abc import Mapping

from ds_dip.models.partition import Partition
from ds_dip.reproduction import contenders
from ds_dip.reproduction.experiment import Run
from ds_dip.reproduction.fsdp import exposed, fsdp
from ds_dip.scheduling import interleave, interleaved_1f1b

System = tuple[str, Run]
OURS = "ours"
#: Systems that the paper compares with.
BASELINES: Mapping[str, System] = {
    "fsdp": ("FSDP (analytic)", fsdp),
    "megatron": ("Megatron, interleaved, equal parameters", contenders.megatron),
    "static": ("static plan (nnScaler-like)", contenders.static),
    "optimus": ("coarse Optimus", contenders.optimus),
}
RULE: System = ("DIP, partition by the paper's rule", contenders.paper)
#: Those, FSDP and interleaving otherwise than in the paper, then DIP by the paper's rule and by our search.
SYSTEMS: Mapping[str, System] = {
    **BASELINES,
    "exposed": ("FSDP, nothing hidden (not in the paper)", exposed),
    "balanced": ("interleaved, equal seconds (not in the paper)", contenders.balanced),
    "rule": RULE,
    OURS: ("ds_dip, partition searched", contenders.ours),
}


def steps(partition: Partition, detail: str) -> Mapping[str, System]:
    """The ablation: Megatron, then the paper's parts one after the other on this partition; at last our own."""
    return {
        "megatron": BASELINES["megatron"],
        "partitioner": (
            "+ partitioner (the paper's rule)",
            lambda own: contenders.ordered(own, partition, interleaved_1f1b, detail).outcome,
        ),
        "interleaving": (
            "+ interleaving",
            lambda own: contenders.ordered(own, partition, interleave, detail).outcome,
        ),
        "reordering": ("+ reordering", lambda own: contenders.reordered(own, partition, detail).outcome),
        "memory": ("+ memory", contenders.paper),
        OURS: SYSTEMS[OURS],
    }
