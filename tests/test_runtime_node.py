"""How much of a node planners take: at most half, whatever the launcher and its bindings."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_dip.runtime.node import MOST_WORKERS, Node, _quota, node_of


class Topology:
    """Pipelines of ``pipe`` ranks in a row, as DeepSpeed numbers them: replicas are ``pipe`` apart or interleaved."""

    def __init__(self, pipe: int, data: int) -> None:
        self.pipe, self.data = pipe, data

    def world_size(self) -> int:
        return self.pipe * self.data

    def get_dim(self, axis: str) -> int:
        return self.data if axis == "data" else self.pipe

    def get_rank(self, pipe: int, data: int) -> int:
        return pipe * self.data + data


@given(st.integers(1, 256), st.integers(1, 16), st.integers(0, 16), st.integers(1, 8), st.booleans())
def test_all_planners_together_take_at_most_half_or_one_core_each(
    cores: int, ranks: int, planners: int, busy: int, bound: bool
) -> None:
    own = max(1, cores // ranks) if bound else cores
    node = Node(cores, own, ranks, planners, busy)
    assert 1 <= node.workers <= MOST_WORKERS
    if node.workers > 1:
        assert (node.workers if bound else node.workers * max(1, planners)) <= max(1, own // 2)
    if node.spare:
        assert ranks * busy + planners <= cores


@pytest.mark.parametrize("name", ["LOCAL_WORLD_SIZE", "LOCAL_SIZE"])
def test_leaders_are_counted_on_their_own_node(name: str) -> None:
    topology = Topology(pipe=4, data=4)
    nodes = [node_of(topology, rank, {name: "8"}) for rank in range(16)]
    assert [node.ranks for node in nodes] == [8] * 16
    assert [node.planners for node in nodes] == [4] * 8 + [0] * 8


def test_without_a_launcher_all_ranks_are_here() -> None:
    node = node_of(Topology(pipe=2, data=3), 5, {})
    assert (node.ranks, node.planners) == (6, 3)
    assert 1 <= node.own <= node.cores


@pytest.mark.parametrize(("text", "cores"), [("400000 100000", 4), ("150000 100000", 1), ("5000 100000", 1)])
def test_a_containers_quota_counts(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert _quota(tmp_path / "cpu.max") == cores


def test_no_quota_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert _quota(tmp_path / "cpu.max") > 10_000
    assert _quota(tmp_path / "none") > 10_000
