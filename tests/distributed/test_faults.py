"""What a run outlives, and what it ends from in order: planners in trouble, a lost store, slow ranks, signals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from ds_dip.partition.checkpoint import check_contents, check_files, read_manifest, resolve
from tests.distributed.datasets import DEADLINE_S, TROUBLES
from tests.distributed.faults import AFTER, DURING, RANK_S, SLOW_S, STEPS, WORLD
from tests.distributed.ranks import PORT, run_ranks

DEFAULT = ("troubled planner", "interrupted", "resumed", "one rank terminated")
NIGHTLY = (
    "slow rank",
    "store killed", "store stopped", "two jobs", "all interrupted", "one replica terminated", "second signal",
    "exchanged",
)  # fmt: skip
#: Seconds that a rank watches for the others' signs of life, and takes to end.
SIGNS_S = 8.0
STORE = "torchrun's agent, which holds the store of the job, is gone or stopped; look at that rank's log"


class Results:
    """What the ranks of the cases left in a folder."""

    def __init__(self, folder: Path, cases: tuple[str, ...]) -> None:
        self.folder = folder
        run_ranks("tests.distributed.faults", 1, str(folder), *cases, seconds=500.0)

    def outcome(self, case: str) -> Any:
        return json.loads((self.folder / f"{case}.json").read_text())

    def codes(self, case: str, wanted: list[int]) -> None:
        outcome = self.outcome(case)
        assert outcome["codes"] == wanted, "\n".join(log[-2000:] for log in outcome["logs"])

    def sentences(self, case: str) -> list[str]:
        lines = [line for log in self.outcome(case)["logs"] for line in log.splitlines()]
        return [line.removeprefix("SENTENCE ") for line in lines if line.startswith("SENTENCE ")]

    def of(self, case: str, name: str) -> list[Any]:
        """What each rank wrote."""
        return [json.loads((self.folder / case / f"{name}-{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("faults"), DEFAULT)


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("faults"), NIGHTLY)


def test_a_planner_in_any_trouble_changes_no_loss(results: Results) -> None:
    results.codes("troubled planner", [0] * WORLD)
    undisturbed = results.of("troubled planner", "undisturbed")
    assert len(undisturbed[0]) == STEPS
    assert results.of("troubled planner", "losses") == undisturbed


#: Causes of which one counts at least, a part of a reason, and how often the planner is started again.
EXPECTED = {
    "killed": (("dead", "starting"), "ended by SIGKILL", 1),
    "stopped": (("late",), f"not there within {DEADLINE_S:g} s", 0),
    "slow": (("late",), f"not there within {DEADLINE_S:g} s", 0),
    "garbage": (("refused", "starting"), "sent nonsense", None),
    "memory": (("failed",), "MemoryError", 0),
    "ended by the system": (("dead", "starting"), "ended by SIGKILL", None),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_planner_in_trouble_costs_counted_fallbacks_and_then_plans_again(results: Results, trouble: str) -> None:
    told = results.of("troubled planner", "told")[0][trouble]
    causes, reason, restarts = EXPECTED[trouble]
    kinds = [kind for kind, _ in told["during"] + told["after"]]
    assert kinds.count("fallback") == sum(told["causes"].values()) >= 1
    counted = {cause for cause, count in told["causes"].items() if count}
    assert counted & set(causes)
    # Where others use the processor, too, a plan may be late before the trouble shows.
    assert counted <= {*causes, "late"}
    assert any(reason in line for line in told["reasons"]), told["reasons"]
    # Every start takes a second and more, and the pauses between them grow.
    assert told["restarts"] == restarts if restarts is not None else 1 <= told["restarts"] <= DURING
    assert kinds[-1] == "planned"
    assert (len(told["during"]), len(told["after"])) == (DURING, AFTER)
    # At most one step waits until the deadline, whatever the planner does.
    assert sorted(seconds for _, seconds in told["during"])[-2] < DEADLINE_S


def test_a_killed_rank_is_named_within_the_deadline_and_a_run_from_the_checkpoint_is_the_same(results: Results) -> None:
    results.codes("interrupted", [1, -9])
    (sentence,) = results.sentences("interrupted")
    assert sentence.startswith("rank 0, step 4: rank 1 gives no sign of life any more (killed, stopped or cut off)")
    ended = results.outcome("interrupted")["ended"]
    assert ended[0] - ended[1] < RANK_S + SIGNS_S
    results.codes("resumed", [0] * WORLD)
    whole, resumed = results.of("resumed", "whole"), results.of("resumed", "resumed")
    for (losses, weights), (losses_, weights_) in zip(whole, resumed, strict=True):
        assert losses[3:] == losses_
        assert weights == weights_


@pytest.mark.nightly
def test_a_slow_rank_is_waited_for_and_seen(nightly: Results) -> None:
    nightly.codes("slow rank", [0] * WORLD)
    for steps in nightly.of("slow rank", "steps"):
        first, second = steps[1]["longest"]
        assert second > 0.9 * SLOW_S > first
        assert steps[1]["iteration"] > 0.9 * SLOW_S
        assert max(steps[3]["longest"]) < 0.5 * SLOW_S
        for step in steps:
            every, rank, own = step["loading"]
            assert len(every) == WORLD
            assert every[rank] == own > 0.0
    rows = (nightly.folder / "slow rank" / "csv" / "run" / "DIP_measured_s.csv").read_text().splitlines()
    measured = [float(row.split(",")[1]) for row in rows[1:]]
    assert len(measured) == 4
    assert measured[1] > 0.9 * SLOW_S > measured[3]


def check_stopped(found: Results, case: str, status: int) -> None:
    found.codes(case, [status] * WORLD)
    assert found.of(case, "steps") == [2] * WORLD
    saved = resolve(found.folder / case / "saved", None)
    assert saved is not None
    manifest = read_manifest(saved)
    check_files(saved, manifest)
    check_contents(saved, manifest, manifest["files"])
    assert manifest["step"] == 2


def test_a_signal_to_one_rank_stops_all_after_the_same_step_with_a_checkpoint(results: Results) -> None:
    check_stopped(results, "one rank terminated", 143)


@pytest.mark.nightly
def test_a_signal_to_all_ranks_is_one_request(nightly: Results) -> None:
    check_stopped(nightly, "all interrupted", 130)


@pytest.mark.nightly
def test_a_signal_to_one_replica_stops_all(nightly: Results) -> None:
    check_stopped(nightly, "one replica terminated", 143)


@pytest.mark.nightly
def test_a_second_signal_ends_a_rank_that_waits_for_another(nightly: Results) -> None:
    nightly.codes("second signal", [1, 143])
    (sentence,) = nightly.sentences("second signal")
    assert sentence.startswith("rank 0, step 1: rank 1 gives no sign of life any more"), sentence


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_lost_store_ends_all_ranks_within_the_deadline(nightly: Results, how: str) -> None:
    nightly.codes(f"store {how}", [1] * WORLD)
    sentences = nightly.sentences(f"store {how}")
    assert len(sentences) == WORLD
    assert any(STORE in sentence for sentence in sentences), sentences
    assert all(seconds < 3 * RANK_S for seconds in nightly.of(f"store {how}", "seconds"))


@pytest.mark.nightly
def test_two_jobs_at_once_do_not_meet(nightly: Results) -> None:
    losses, planners = [], []
    for number, outcome in enumerate(nightly.outcome("two jobs"), 1):
        assert outcome["codes"] == [0] * WORLD, "\n".join(log[-2000:] for log in outcome["logs"])
        losses.append(nightly.of(f"two jobs {number}", "losses"))
        process, planned = nightly.of(f"two jobs {number}", "planner")[0]
        assert planned >= 10
        assert not psutil.pid_exists(process)
        planners.append(process)
    assert losses[0] == losses[1]
    assert planners[0] != planners[1]
    assert not list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{PORT}_*"))


@pytest.mark.nightly
def test_what_ranks_give_each_other_at_start_comes_back_as_it_was(nightly: Results) -> None:
    nightly.codes("exchanged", [0] * WORLD)
