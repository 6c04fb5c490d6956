"""What other setups would bring: each changes one thing of how a model's batches are run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ds_dip.costs.roofline import Roofline
from ds_dip.costs.weights import WeightShares
from ds_dip.explaining.schedules import Setting, compared
from ds_dip.explaining.setup_what_if import CHANGES, FasterLinks, Setup, setup_what_if
from ds_dip.explaining.trial import Way, describe, problem_of, tried
from ds_dip.explaining.what_if import Effort
from ds_dip.models.partition import Partition
from ds_dip.models.spec import Sizes
from ds_dip.partition import make_partition
from ds_dip.partition.memory import Memory
from ds_dip.partition.scoring import Remembered, Scorer
from ds_dip.scheduling import Problem, Schedule, gpipe, lower_bound, retime
from tests.partition_cases import PROCESSOR, QUICKSTART, digits, schedule

COSTS = Remembered(Roofline(QUICKSTART, PROCESSOR))
PARTITION = make_partition(QUICKSTART, 2, {"language": 2}, {"vision": 6}, COSTS, placement="zigzag")


def setup_of(memory: Memory | None = None, partition: Partition = PARTITION) -> tuple[Scorer, Setup]:
    workload = digits()
    scorer = Scorer(QUICKSTART, workload, COSTS, schedule, memory)
    return scorer, Setup(workload, COSTS, partition, scorer.memory, ("none",))


def changes(kind: str, memory: Memory | None = None) -> dict[str, Setup]:
    return {name: setup for name, _, setup in CHANGES[kind](*setup_of(memory))}


def test_laps_change_one_module_and_keep_the_others_chunks_and_the_placement() -> None:
    found = changes("laps")
    assert list(found) == ["vision K=2", "language K=1", "language K=3"]
    own = found["vision K=2"].partition
    assert own.of("vision")[-1].segment == 1
    assert own.of("language") != ()
    assert [(c.start, c.stop) for c in own.of("language")] == [(c.start, c.stop) for c in PARTITION.of("language")]
    assert [c.rank for c in own.of("vision")] == [0, 1, 1, 0]
    assert own.sub_microbatch == PARTITION.sub_microbatch


def test_sub_microbatches_change_where_a_module_can_be_cut() -> None:
    found = changes("sub-microbatch")
    sizes = {name: dict(own.partition.sub_microbatch)["vision"] for name, own in found.items()}
    assert sizes == {"vision B=3": 3, "vision B=whole": None}
    assert all(replace(own, partition=PARTITION) == setup_of()[1] for own in found.values())


def test_microbatches_are_one_fewer_one_more_and_twice_as_many() -> None:
    assert [own.workload.microbatches for own in changes("microbatch").values()] == [3, 5, 8]


def test_memory_changes_where_there_is_a_limit() -> None:
    assert changes("memory") == {}
    found = changes("memory", Memory(bytes=1e8, limits=(1e7, None)))
    assert found["memory x1.25"].memory == Memory(bytes=1.25e8, limits=(1.25e7, None))
    assert found["no memory limit"].memory == Memory()


def test_faster_links_shorten_transfers_alone() -> None:
    faster, where = FasterLinks(COSTS, 0.5), ("language", 0, 2, Sizes((5,), (5,)))
    assert faster.transfer(1e6) == 0.5 * COSTS.transfer(1e6)
    for name in ("forward", "backward", "activation_bytes"):
        assert getattr(faster, name)(*where) == getattr(COSTS, name)(*where)


def test_every_setup_is_searched_with_every_seed() -> None:
    scorer, setup = setup_of()
    base, *found = setup_what_if(scorer, setup, ("links", "balance"), Effort(20, seeds=2))
    assert [own.name for own in found] == ["links x2", "no transfers", "balanced ranks", "even microbatches"]
    assert all(len(own.makespans) == 2 for own in (base, *found))
    assert found[1].bound <= base.bound * (1 + 1e-12)


def test_a_setup_that_does_not_fit_says_why() -> None:
    scorer, setup = setup_of(Memory(bytes=1e6))
    (found, *_) = setup_what_if(scorer, setup, ("links",), Effort(5, seeds=1))
    assert found.makespans == ()
    assert "leaves nothing of 0.001 GB" in found.reason


def test_a_trial_tells_of_every_batch() -> None:
    scorer, _ = setup_of()

    def order(problem: Problem, *_: object) -> tuple[Problem, Schedule]:
        return problem, gpipe(problem)

    found = tried(scorer, Way("gpipe", describe(PARTITION), PARTITION, order, ("none",)))
    problems = [problem_of(scorer, batch, PARTITION, ("none",)) for (batch,) in scorer.batches(PARTITION)]
    assert found.makespans == tuple(retime(own, gpipe(own)).makespan for own in problems)
    assert found.bounds == tuple(lower_bound(own)[0] for own in problems)
    assert found.memory == max(max(retime(own, gpipe(own)).peak_memory) for own in problems)
    assert found.detail == "vision K=1 B=6, language K=2"
    assert found.gap == pytest.approx(sum(found.makespans) / sum(found.bounds) - 1)
    worked = [sum(task.duration for task in own.tasks) for own in problems]
    assert found.bubbles == pytest.approx(
        [1 - work / (2 * took) for work, took in zip(worked, found.makespans, strict=True)]
    )


def test_a_schedule_without_a_way_says_why() -> None:
    # Two modules in one lap of one rank are two chunks, and interleaving wants as many ranks as modules at least.
    scorer = Scorer(QUICKSTART, digits(1), COSTS, schedule)
    setting = Setting(scorer, make_partition(QUICKSTART, 1), WeightShares(QUICKSTART, PROCESSOR), most_laps=1)
    found = compared(setting, ("interleaved", "dip-memory", "1f1b"))
    assert found[0].reason == "2 modules need as many chunks, and 1 ranks x 1 are 1"
    assert "memory is not limited" in found[1].reason
    assert not found[2].reason
