"""Stop and resume is bit-equal; another partition goes through the conversion, or is refused (real ranks)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from deepspeed.checkpoint import ds_to_universal

from ds_dip.cli import cli
from tests.distributed.ranks import run_ranks

MODES = ("fp32-0", "fp32-1", "bf16-0", "bf16-1", "bf16-accumulate-1")
#: Two ranks, the language model in two laps.
SAVED = {"ranks": 2, "laps": {"language": 2}}
#: Beside the modes: a frozen encoder with a buffer, and a block that two ranks share.
VARIANTS = {mode: {"mode": mode} for mode in MODES} | {
    f"{mode}-tied": {"mode": mode, "tied": True, "frozen": True} for mode in ("fp32-0", "fp32-1")
}
#: Largest difference of a weight after two further steps of AdamW with a learning rate of about 2e-3.
TOLERANCE = {"fp32": 2e-6, "bf16": 8e-3}


class Folder:
    """Where the runs of this module save, and how they are started."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, world: int, *jobs: dict[str, Any], seconds: float = 300.0) -> list[list[dict[str, Any]]]:
        """What every rank reports, job by job."""
        script = self.path / "jobs.json"
        script.write_text(json.dumps(jobs))
        return run_ranks("tests.distributed.checkpoint", world, str(self.path), str(script), seconds=seconds)

    def weights(self, name: str, ranks: int) -> dict[str, torch.Tensor]:
        """What ranks dumped, together."""
        parts = [torch.load(self.path / f"{name}-{rank}.pt") for rank in range(ranks)]
        return {key: tensor for part in parts for key, tensor in part.items()}

    def difference(self, first: tuple[str, int], second: tuple[str, int]) -> float:
        """The largest difference of a weight or buffer of two dumps of the same model."""
        one, other = self.weights(*first), self.weights(*second)
        assert set(one) == set(other)
        return max(float((one[key].double() - other[key].double()).abs().max()) for key in one)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Every variant trained for six steps and saved after three; the first one with a planner's process."""
    folder = Folder(tmp_path_factory.mktemp("checkpoints"))
    jobs = []
    for name, variant in VARIANTS.items():
        actions = [["train", 3], ["save", None], ["train", 2], ["dump", f"{name}-5"], ["train", 1]]
        jobs.append({**SAVED, **variant, "name": name, "actions": [*actions, ["dump", f"{name}-6"]]})
    jobs[0]["planner"] = True
    for rows in folder.run(2, *jobs):
        for row in rows:
            (folder.path / f"{row['name']}.json").write_text(json.dumps(row["losses"]))
    for name in VARIANTS:
        result = CliRunner().invoke(
            cli, ["checkpoint", "convert", str(folder.path / name), str(folder.path / name / "universal")]
        )
        assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], check=False).returncode:
        pytest.skip("mounting needs rights that this user has not")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_same_partition_resumes_bit_equal_and_others_are_refused(saved: Folder) -> None:
    others = {
        "another-k": {"ranks": 2},
        "other-bounds": {**SAVED, "parts": {"vision": [2, 3]}},
        "another-p-and-dp": {"ranks": 1},
        "another-stage": SAVED,
    }
    jobs = []
    for name, variant in VARIANTS.items():
        actions: list[Any] = [["load", name], ["train", 3], ["dump", f"{name}-resumed"]]
        jobs.append({**SAVED, **variant, "name": f"{name} resumed", "seed": 7, "actions": actions})
    # The first with a planner's process, and set back in the same run.
    jobs[0]["planner"] = True
    jobs[0]["actions"] += [["load", "fp32-0"], ["train", 3], ["dump", "again"]]
    for name, where in others.items():
        mode = "bf16-1" if name == "another-stage" else "fp32-1"
        jobs.append({**where, "mode": mode, "name": name, "seed": 7, "actions": [["refused", "fp32-1"]]})
    jobs.append({**SAVED, "mode": "fp32-1", "name": "universal", "actions": [["refused", "fp32-1", "universal"]]})
    first, second = saved.run(2, *jobs)
    assert first[0]["losses"][3:] == first[0]["losses"][:3]
    assert saved.difference(("fp32-0-6", 2), ("again", 2)) == 0.0
    for row in first[: len(VARIANTS)]:
        name = row["name"].removesuffix(" resumed")
        assert row["loaded"][1:] == [[name, 3], 3]
        assert row["losses"][:3] == json.loads((saved.path / f"{name}.json").read_text())[3:]
        assert saved.difference((f"{name}-6", 2), (f"{name}-resumed", 2)) == 0.0, name
    for row, other in zip(first[len(VARIANTS) : -1], second[len(VARIANTS) : -1], strict=True):
        [[_, sentence, unchanged, step]] = row["errors"]
        assert (unchanged, step) == (True, 0)
        assert other["errors"] == row["errors"]
        checkpoint = saved.path / "fp32-1" / "global_step3"
        assert f"ds-dip checkpoint convert {checkpoint} {checkpoint}_universal" in sentence
        assert "language K=2 with 2+1+1+2 layers on ranks 0,1,0,1" in sentence
        assert sentence.count("(P=") == 2
    assert "vision K=1 with 2+3 layers" in first[-4]["errors"][0][1]
    assert "P=1, 2 replicas" in first[-3]["errors"][0][1]
    assert "bfloat16" in first[-2]["errors"][0][1]
    assert (
        '"checkpoint": {"load_universal": true}' in first[-1]["errors"][0][1] or "no such" in first[-1]["errors"][0][1]
    )


def test_a_universal_checkpoint_continues_under_any_partition(saved: Folder) -> None:
    wanted = []
    for world, where, names in (
        (2, {"ranks": 2}, tuple(VARIANTS)),
        (2, {"ranks": 1}, ("fp32-0", "fp32-1", "fp32-1-tied", "bf16-1")),
        (1, {"ranks": 1}, ("fp32-1", "fp32-0-tied", "bf16-0")),
    ):
        label = f"{world}-{where['ranks']}"
        jobs = []
        for name in names:
            actions = [["load", name], ["train", 2], ["dump", f"{name}-{label}"]]
            job = {
                **where,
                **VARIANTS[name],
                "name": f"{name} {label}",
                "universal": True,
                "seed": 7,
                "actions": actions,
            }
            if world == 1 and name == "fp32-1":
                job["actions"] = [*actions[:1], ["save", "one"], *actions[1:]]
            jobs.append(job)
            wanted.append((name, label, where["ranks"]))
        for row in saved.run(world, *jobs)[0]:
            assert row["loaded"][2] == 3
    for name, label, ranks in wanted:
        found = saved.difference((f"{name}-5", 2), (f"{name}-{label}", ranks))
        assert found <= TOLERANCE[name[:4]], (name, label, found)
    # From one rank and one replica to two of either.
    source = saved.path / "fp32-1 1-1" / "one"
    result = CliRunner().invoke(cli, ["checkpoint", "convert", str(source), str(source.parent / "all")])
    assert result.exit_code == 0, result.output
    jobs = []
    for label, where in (("more-p", SAVED), ("more-dp", {"ranks": 1})):
        actions = [["load", source.parent.name], ["train", 2], ["dump", label]]
        jobs.append({**where, "mode": "fp32-1", "name": label, "universal": True, "seed": 9, "actions": actions})
    saved.run(2, *jobs)
    for label, ranks in (("more-p", 2), ("more-dp", 1)):
        assert saved.difference(("fp32-1-5", 2), (label, ranks)) <= TOLERANCE["fp32"]


@pytest.mark.parametrize("name", ["fp32-1", "bf16-1", "bf16-accumulate-1"])
def test_the_conversion_is_deepspeeds_where_deepspeeds_works(saved: Folder, name: str, tmp_path: Path) -> None:
    ours, theirs = saved.path / name / "universal" / "zero", tmp_path / "theirs"
    ds_to_universal.main(
        SimpleNamespace(
            input_folder=str(saved.path / name / "global_step3"),
            output_folder=str(theirs),
            inject_missing_state=True,
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
        )
    )
    files = {path.relative_to(ours) for path in ours.rglob("*.pt")}
    assert files == {path.relative_to(theirs / "zero") for path in theirs.joinpath("zero").rglob("*.pt")}
    for file in files - {Path("optimizer_state.pt")}:
        one, other = (torch.load(folder / file, weights_only=False) for folder in (ours, theirs / "zero"))
        if file.name == "step.pt":
            assert one == other
        else:
            assert torch.equal(one.pop("param"), other.pop("param")), file
            assert one == other


def test_a_failed_save_is_told_on_every_rank_and_leaves_the_last_checkpoint(small_disk: Path, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "runs")
    folder.path.mkdir()
    job = {**SAVED, "mode": "fp32-1", "name": "run"}
    actions = [["train", 1], ["save", "first"], ["unpicklable", "second"], ["unwritable", "second"]]
    # On the small disk itself, which fills up while the second checkpoint is written.
    full = [["train", 1], ["save", "first"], ["full", str(folder.path / "run")], ["load", "run"], ["train", 1]]
    ranks = folder.run(2, {**job, "actions": actions}, {**job, "actions": full})
    (folder.path / "run" / "filler").unlink()
    for rows in ranks:
        [[_, pickling, _, _], [_, sentence, _, _]] = rows[0]["errors"]
        assert "pickle" in pickling
        assert sentence.startswith("rank 1 could not write ")
        assert "No space left on device" in sentence
        [[_, sentence, _, step]] = rows[1]["errors"]
        assert re.search(
            r"could not write .*/\.second\.saving/.* \(No space left on device after \d+ bytes, \d+ bytes free\)",
            sentence,
        )
        assert "the checkpoints before it are untouched" in sentence
        assert step == 1
        assert rows[1]["loaded"][2] == 1
        assert [row["errors"] for row in rows] == [row["errors"] for row in ranks[0]]
    assert {path.name for path in (folder.path / "run").iterdir()} <= {
        "first",
        "latest",
        "zero_to_fp32.py",
        "zero_to_torch.py",
    }


def test_a_rank_that_dies_while_saving_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    job = {**SAVED, "mode": "fp32-1", "name": "run"}
    actions = [["train", 1], ["save", None], ["train", 1], ["killed", None]]
    with pytest.raises(
        AssertionError, match=r"rank 0, the save of .*run/global_step2: rank 1 gives no sign of life any more"
    ):
        folder.run(2, {**job, "actions": actions})
    assert (tmp_path / "run" / "latest").read_text() == "global_step1"
    assert not (tmp_path / "run" / "global_step2").exists()
    name = "run/global_step2/layer_03-model_states.pt"
    again = [["load", "run"], ["train", 1], ["save", None], ["damage", name], ["refused", "run"]]
    ranks = folder.run(2, {**job, "actions": again})
    size = (tmp_path / name).stat().st_size
    for rows in ranks:
        assert rows[0]["loaded"][2] == 1
        [[_, sentence, unchanged, _]] = rows[0]["errors"]
        assert sentence == (
            f"{tmp_path / name}: has {size} bytes and was written with {size + 7}, so the checkpoint is damaged; "
            "take another one"
        )
        assert unchanged
    assert (tmp_path / "run" / "latest").read_text() == "global_step2"
