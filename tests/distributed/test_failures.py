"""What ends a run is told in one sentence on every rank that is left; the last checkpoint stays whole (real ranks)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ds_dip.partition.checkpoint import check_contents, check_files, read_manifest, resolve
from tests.distributed.failures import RANK_S, WORLD
from tests.distributed.ranks import run_ranks

#: A rank's exit status, negative for a signal and None where it had to be ended, and how its sentence starts.
Rank = tuple[int | None, str | None]


def all_say(sentence: str) -> list[Rank]:
    """Every rank gives the same sentence."""
    return [(1, sentence)] * WORLD


def one_says(rank: int, sentence: str) -> list[Rank]:
    """A rank gives the sentence, and the others who gave it."""
    told = f"step 0: rank {rank} ended in step 0: {sentence}"
    return [(1, sentence if other == rank else f"rank {other}, {told}") for other in range(WORLD)]


def lost(rank: int, status: int | None, where: str, why: str = "") -> list[Rank]:
    """A rank says nothing any more, and the others say which, and where they noticed."""
    why = why or f"rank {rank} gives no sign of life any more (killed, stopped or cut off); look at that rank's log and"
    return [(status, None) if other == rank else (1, f"rank {other}, {where}{why}") for other in range(WORLD)]


RAISED = "sample 'train-16': the dataset raised "
BLAMED = "microbatch 0 (samples train-16, train-36): "
UNPLANNED = "step 0 cannot be planned: "
STORE = "rank 0, which holds the store of the job, is gone or stopped; look at that rank's log"
#: Cases of the default suite.
CASES = {
    "raises": one_says(0, RAISED + "OSError ([Errno 5] Input/output error) while it loaded pixels; make load()"),
    "width": one_says(0, f"vision chunk 0 (layers 0 to 1), {BLAMED}mat1 and mat2 shapes cannot be multiplied"),
    "ends": all_say(UNPLANNED + "the dataset raised IndexError (index 36 is beyond the end) for the metadata of sam"),
    "unsupervised": all_say(UNPLANNED + "none of the global batch's 8 samples has a supervised token, so there is no"),
    "killed": lost(1, -9, "step 1: "),
    "stopped": lost(2, None, "step 1: "),
    "first stopped": lost(0, None, "step 1: ", STORE),
    "own error": lost(1, 1, "step 1: ", "rank 1 ended: ZeroDivisionError: the user's own arithmetic"),
    "load without a rank": lost(1, 9, "the load of ", "/"),
    "deadlines": [(0, None)] * WORLD,
}
NIGHTLY = {
    "stops": one_says(2, RAISED + "StopIteration (StopIteration) while it loaded labels; make load()"),
    "sizes": one_says(0, "sample 'train-16', field 'pixels': instance 0 has size 15 and the metadata says 16"),
    "vocabulary": one_says(0, f"language chunk 0 (layers 0 to 1), {BLAMED}index out of range"),
    "dtype": one_says(0, f"language chunk 0 (layers 0 to 1), {BLAMED}Expected tensor for argument"),
    "metadata": all_say(UNPLANNED + "the dataset raised OSError ([Errno 5] Input/output error) for the metadata of"),
    "ends, planned ahead": all_say(UNPLANNED + "the dataset raised IndexError (index 36 is beyond the end) for"),
    "first killed": lost(0, -9, "step 1: ", STORE),
    "killed in a collective": lost(1, -9, "the barrier of this test: "),
    "stopped in a collective": lost(1, None, "the barrier of this test: "),
    "gone at the end": lost(1, 9, "the end of the run: "),
    "few layers": all_say("module vision has 3 layers, but 5 ranks x 1 laps need 5 chunks of at least one layer: use"),
}


def run(cases: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Exit statuses and logs of every case's ranks."""
    run_ranks("tests.distributed.failures", 1, str(folder), *cases, seconds=500.0)
    return {case: json.loads((folder / f"{case}.json").read_text()) for case in cases}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, dict[str, Any]]:
    return run(list(CASES), folder)


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return run(list(NIGHTLY), tmp_path_factory.mktemp("failures"))


def check(result: dict[str, Any], wanted: list[Rank]) -> None:
    logs = result["logs"]
    assert result["codes"] == [code for code, _ in wanted], "\n".join(log[-2000:] for log in logs)
    for log, (_, sentence) in zip(logs, wanted, strict=True):
        said = [line.removeprefix("SENTENCE ") for line in log.splitlines() if line.startswith("SENTENCE ")]
        if sentence is None:
            assert not said, said
            continue
        assert len(said) == 1, log[-2000:]
        assert said[0].startswith(sentence), said[0]


@pytest.mark.parametrize("case", CASES)
def test_every_rank_that_is_left_ends_with_a_sentence(results: Any, case: str) -> None:
    check(results[case], CASES[case])


@pytest.mark.nightly
@pytest.mark.parametrize("case", NIGHTLY)
def test_every_rank_that_is_left_ends_with_a_sentence_nightly(nightly: Any, case: str) -> None:
    check(nightly[case], NIGHTLY[case])


def test_the_configured_deadline_reaches_every_process_group(results: Any, folder: Path) -> None:
    assert results["deadlines"]["codes"] == [0] * WORLD
    for rank in range(WORLD):
        found = json.loads((folder / "deadlines" / f"deadlines-{rank}.json").read_text())
        assert len(found) > 3
        assert set(found) == {RANK_S}


@pytest.mark.parametrize("case", ["killed", "stopped", "first stopped", "load without a rank"])
def test_the_last_checkpoint_is_whole_after_a_rank_is_lost(results: Any, folder: Path, case: str) -> None:
    assert results[case]["codes"]
    saved = resolve(folder / case / "saved", None)
    assert saved is not None
    assert saved.name == "global_step1"
    manifest = read_manifest(saved)
    check_files(saved, manifest)
    check_contents(saved, manifest, manifest["files"])
