"""How much of a node's processor its planners may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

#: Threads of one search by default; more has not been measured to help.
MOST_WORKERS = 8
#: Cores that a rank on an accelerator keeps busy: its own thread and autograd's.
_BUSY = 2


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a job: ``cores`` in all, ``own`` that this process may run on, ``ranks`` and ``planners`` on it.

    ``busy`` cores a rank.
    """

    cores: int
    own: int
    ranks: int
    planners: int
    busy: int

    @property
    def workers(self) -> int:
        """Threads of a planner's search: all planners together take at most half of the node's cores."""
        # A process bound to cores of its own has neighbours elsewhere.
        share = self.own // 2 if self.own < self.cores else self.cores // 2 // max(1, self.planners)
        return min(MOST_WORKERS, max(1, share))

    @property
    def spare(self) -> bool:
        """Whether planners have cores that ranks leave free."""
        return self.cores >= self.ranks * self.busy + self.planners


def node_of(topology: Any, rank: int, environment: Mapping[str, str] = os.environ) -> Node:
    """The node of a global rank; launchers number the ranks of a node in a row and tell how many they are."""
    world = int(topology.world_size())
    told = [environment.get(name, "") for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")]
    ranks = next((int(text) for text in told if text.isdecimal() and int(text)), world)
    leaders = {topology.get_rank(pipe=0, data=replica) for replica in range(topology.get_dim("data"))}
    here = range(rank // ranks * ranks, min(world, (rank // ranks + 1) * ranks))
    cores = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    quota = _quota()
    busy = torch.get_num_threads() if get_accelerator().device_name() == "cpu" else _BUSY
    return Node(min(cores, quota), min(own, quota), len(here), len(leaders & set(here)), busy)


def _quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The processors that a container is given, rounded down; as many as there may be where it has no quota."""
    try:
        most, period = path.read_text().split()
        return max(1, int(most) // int(period))
    except (OSError, ValueError):
        return 1 << 20
