"""The end of a batch: reductions and steps by hand, on the ranks that hold parameters, and in the makespan."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds_dip.costs.ending import Ending, rank_tails
from ds_dip.costs.parallel import TensorParallel
from ds_dip.costs.roofline import Rates, Roofline
from ds_dip.data import SampleMetadata
from ds_dip.models import load_model
from ds_dip.models.parameters import parameters
from ds_dip.models.partition import Partition
from ds_dip.partition import make_partition
from ds_dip.partition.memory import Memory
from ds_dip.partition.scoring import Scorer
from ds_dip.partition.workload import Workload
from ds_dip.planning import build_problem, cut
from ds_dip.planning.split import split
from ds_dip.scheduling import lower_bound
from tests.partition_cases import QUICKSTART, schedule

CONFIGS = Path(__file__).parent.parent / "model_configs"
T2V = load_model(CONFIGS / "t2v_s.json")
SAMPLE = SampleMetadata("a", {"vision": (16, 16), "language": (12,)}, 8, {"vision": (4, 4)})


def test_a_reduction_is_two_rings_and_a_step_moves_the_states() -> None:
    ending = Ending(4, link=100.0, link_latency=0.5, memory=10.0, compute="bfloat16")
    # fp32 gradients one way, weights in half precision the other, three quarters of the bytes to others.
    assert ending.reduction(200) == pytest.approx(2 * 3 * 0.5 + 0.75 * 200 * (4 + 2) / 100)
    # A quarter of the parameters: gradient, weight, two moments read; the last three and the run's weights written.
    assert ending.step(200) == pytest.approx(50 * (16 + 12 + 2) / 10)
    assert ending.seconds(200) == ending.reduction(200) + ending.step(200)


def test_one_replica_reduces_nothing_and_fp32_weights_are_the_runs() -> None:
    ending = Ending(1, link=100.0, link_latency=0.5, memory=10.0)
    assert ending.reduction(200) == 0.0
    assert ending.step(200) == pytest.approx(200 * 28 / 10)
    assert Ending(2, 100.0, 0.5, 10.0).seconds(0) == 0.0


def test_ranks_end_by_what_they_train() -> None:
    partition = make_partition(T2V, 4)
    ending = Ending(2, link=1e9, link_latency=0.0, memory=1e12, compute="bfloat16")
    video = partition.of("video")
    for degree in (1, 4):
        tails = rank_tails(T2V, partition, ending, degree)
        for chunk in video:
            layers = T2V.module("video").layers[chunk.start : chunk.stop]
            # The frozen text encoder adds nothing.
            assert tails[chunk.rank] == pytest.approx(ending.seconds(sum(parameters(own, degree) for own in layers)))


def problem(partition: Partition, tails: tuple[float, ...] | None, *, forward_only: bool = False):
    batch = cut(0, [SAMPLE, SAMPLE], [(0,), (1,)], QUICKSTART, partition)
    costs = Roofline(QUICKSTART)
    return build_problem(batch, QUICKSTART, partition, costs, tails=tails, forward_only=forward_only)


def test_a_makespan_lasts_until_every_ranks_tail() -> None:
    partition = make_partition(QUICKSTART, 2)
    plain, ended = problem(partition, None), problem(partition, (0.25, 100.0))
    timeline = schedule(ended)[2]
    last = {
        rank: max(timeline.end[task.id] for task in ended.tasks if task.rank == rank and task.kind == "B")
        for rank in range(2)
    }
    assert timeline.makespan == pytest.approx(max(last[0] + 0.25, last[1] + 100.0))
    assert lower_bound(ended)[0] >= 100.0 > lower_bound(plain)[0]
    assert all(task.tail == 0.0 for task in ended.tasks if task.kind == "F")
    assert problem(partition, (1.0, 1.0), forward_only=True) == problem(partition, None, forward_only=True)


def test_a_backward_that_is_split_has_its_tail_in_both_parts() -> None:
    whole = problem(make_partition(QUICKSTART, 2), (0.25, 1.0))
    ended, weight = split(whole, {task.id: 0.5 for task in whole.tasks}, 0.1)
    assert weight
    assert all(task.tail == (0.25, 1.0)[task.rank] for task in ended.tasks if task.kind != "F")


def test_a_tail_a_rank_is_asked_for() -> None:
    with pytest.raises(ValueError, match="tails has 1 values for 2 ranks: give one a rank"):
        problem(make_partition(QUICKSTART, 2), (1.0,))


def test_a_candidates_score_ends_with_its_tails() -> None:
    partition, workload = make_partition(QUICKSTART, 2), Workload(((SAMPLE,) * 4,), 2)
    ending = Ending(1, link=1e9, link_latency=0.0, memory=1e6)
    costs = Roofline(QUICKSTART, Rates())
    memories = {degree: Memory(parallel=TensorParallel(degree)) for degree in (1, 2)}
    scores = {
        degree: Scorer(QUICKSTART, workload, costs, schedule, memory, ending).score(partition)
        for degree, memory in memories.items()
    }
    plain = Scorer(QUICKSTART, workload, costs, schedule).score(partition)
    assert plain is not None
    for degree, score in scores.items():
        assert score is not None
        tails = rank_tails(QUICKSTART, partition, ending, degree)
        assert plain.mean + min(tails) <= score.mean <= plain.mean + max(tails)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"replicas": 0}, "replicas is 0"),
        ({"link": 0.0}, "link is 0.0"),
        ({"link_latency": -1.0}, "link_latency is -1.0"),
        ({"compute": "float8"}, "'float8' is unknown"),
    ],
)
def test_impossible_ends_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ending(**({"replicas": 1, "link": 1.0, "link_latency": 0.0, "memory": 1.0} | wrong))
