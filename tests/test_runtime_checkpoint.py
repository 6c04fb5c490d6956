"""Drafts of checkpoints get their name when they are complete; the conversion and its commands, without a run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from deepspeed.checkpoint.constants import PARAM
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.utils.tensor_fragment import fragment_address

from ds_dip.cli import cli
from ds_dip.partition import checkpoint as manifests
from ds_dip.partition.checkpoint import CheckpointError
from ds_dip.runtime import drafts
from ds_dip.runtime.drafts import RecordingEngine
from ds_dip.runtime.universal import convert, layer_file, load_parameters
from tests.test_partition_checkpoint import manifest

SHAPES = {"0.weight": (3, 4), "0.bias": (3,), "tied_modules.shared.weight": (2, 5)}


def draft_of(folder: Path, tag: str, content: str) -> tuple[Path, Path]:
    draft, final = folder / f".{tag}.saving", folder / tag
    drafts.begin(draft, final)
    (draft / "layer").write_text(content)
    return draft, final


def test_a_draft_gets_its_name_and_is_the_newest(tmp_path: Path) -> None:
    draft, final = draft_of(tmp_path, "a", "1")
    drafts.publish(draft, final, manifest(), latest=True)
    assert (tmp_path / "latest").read_text() == "a"
    assert (final / "layer").read_text() == "1"
    assert manifests.read_manifest(final)["step"] == 3
    assert not draft.exists()


def test_what_a_stopped_save_left_goes_with_the_next_one_of_its_name(tmp_path: Path) -> None:
    draft, final = draft_of(tmp_path, "a", "1")
    (draft / "half").write_text("")
    draft, final = draft_of(tmp_path, "a", "2")
    assert [path.name for path in draft.iterdir()] == ["layer"]
    assert not final.exists()
    assert not (tmp_path / "latest").exists()


def test_an_earlier_checkpoint_of_the_name_stays_until_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts.publish(*draft_of(tmp_path, "a", "1"), manifest(), latest=True)
    draft, final = draft_of(tmp_path, "a", "2")
    rename = Path.rename

    def stopped(self: Path, target: Path) -> Path:
        if self == draft:
            raise OSError(errno.EIO, "stopped here")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stopped)
        with pytest.raises(OSError, match="stopped here"):
            drafts.publish(draft, final, manifest(), latest=True)
    assert not final.exists()
    drafts.recover(tmp_path, None, "latest")
    assert (final / "layer").read_text() == "1"
    drafts.publish(*draft_of(tmp_path, "a", "2"), manifest(), latest=True)
    assert (final / "layer").read_text() == "2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "latest"]


def test_saves_are_recorded_and_a_failure_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepspeed.comm.get_rank", lambda: 3)
    engine = RecordingEngine(TorchCheckpointEngine())
    engine.begin(tmp_path)
    engine.save({"a": torch.zeros(4)}, str(tmp_path / "a.pt"))
    content = (tmp_path / "a.pt").read_bytes()
    assert engine.files == {"a.pt": (len(content), hashlib.sha256(content).hexdigest())}
    assert torch.equal(engine.load(str(tmp_path / "a.pt"))["a"], torch.zeros(4))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch, "save", full)
    engine.save({}, str(tmp_path / "b.pt"))
    engine.save({}, str(tmp_path / "c.pt"))
    assert engine.problem.startswith(
        f"rank 3 could not write {tmp_path / 'b.pt'} (No space left on device after 0 bytes, "
    )
    assert "bytes free); the checkpoints before it are untouched" in engine.problem
    assert not (tmp_path / "c.pt").exists()
    assert set(engine.files) == {"a.pt"}


def whole(name: str, key: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash((name, key)) % 2**31)
    return torch.randn(SHAPES[name], generator=generator)


def write_checkpoint(folder: Path, *, replicas: int, zero: bool) -> Path:
    """Two pipeline ranks that share a tied weight; the second one keeps it at another place of its slices."""
    folder.mkdir(parents=True)
    held = {0: ["0.weight", "0.bias", "tied_modules.shared.weight"], 1: ["tied_modules.shared.weight"]}
    torch.save({"weight": whole("0.weight", "fp32"), "bias": whole("0.bias", "fp32")}, folder / layer_file(0))
    torch.save({"weight": whole("tied_modules.shared.weight", "fp32")}, folder / layer_file(1))
    for rank, names in held.items():
        shapes = {name: SHAPES[name] for name in names}
        groups = [{"lr": 0.1, "params": list(range(len(names)))}]
        state = {
            index: {
                "step": 7 * (index == len(names) - 1),
                "exp_avg": whole(name, "exp_avg"),
                "exp_avg_sq": whole(name, "exp_avg_sq"),
            }
            for index, name in enumerate(names)
        }
        head = {
            "ds_version": "0.19.8",
            "note": "kept",
            "optimizer": None if zero else {"state": state, "param_groups": groups},
            "ds_dip": {"parameters": [shapes], "tied": {"shared": (1, True)}},
        }
        torch.save(head, folder / f"mp_rank_{rank:02d}_model_states.pt")
        for replica in range(replicas if zero else 0):
            torch.save(
                {"optimizer_state_dict": slices(names, replica, replicas)},
                folder / f"zero_pp_rank_{replica}_mp_rank_{rank:02d}_optim_states.pt",
            )
    (folder / manifests.NAME).write_text(json.dumps(manifest(replicas=replicas)))
    seal(folder)
    return folder


def seal(folder: Path) -> None:
    """Write sizes and sums of the files as they are into the manifest."""
    contents = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != manifests.NAME}
    document = json.loads((folder / manifests.NAME).read_text())
    document["files"] = {name: len(content) for name, content in contents.items()}
    document["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    (folder / manifests.NAME).write_text(json.dumps(document))


def slices(names: list[str], replica: int, replicas: int) -> dict[str, Any]:
    """One replica's share of the flat state, as ZeRO-1 keeps it: equal parts, the last one padded."""
    flats = {
        key: torch.cat([whole(name, key).flatten() for name in names]) for key in ("fp32", "exp_avg", "exp_avg_sq")
    }
    length = -(-len(flats["fp32"]) // replicas)
    first, mapping, position = replica * length, {}, 0
    for name in names:
        start, stop = max(position, first), min(position + whole(name, "fp32").numel(), first + length)
        if start < stop:
            mapping[name] = fragment_address(start=start - first, numel=stop - start)
        position += whole(name, "fp32").numel()
    parts = {key: torch.nn.functional.pad(flat[first : first + length], (0, 3)) for key, flat in flats.items()}
    fp32 = parts.pop("fp32")
    return {
        "base_optimizer_state": {"state": {0: {"step": 7, **parts}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "single_partition_of_fp32_groups": [fp32],
        "param_slice_mappings": [mapping],
        "ds_version": "0.19.8",
        "clip_grad": 0.5,
    }


@pytest.mark.parametrize(("replicas", "zero"), [(1, True), (2, True), (3, True), (1, False)])
def test_every_parameter_is_put_together(tmp_path: Path, replicas: int, zero: bool) -> None:
    source = write_checkpoint(tmp_path / "saved", replicas=replicas, zero=zero)
    told: list[tuple[int, int]] = []
    document = convert(source, tmp_path / "all", lambda done, of: told.append((done, of)))
    for name, shape in SHAPES.items():
        for key in ("fp32", "exp_avg", "exp_avg_sq"):
            found = torch.load(tmp_path / "all" / "zero" / name / f"{key}.pt")[PARAM]
            assert found.shape == shape
            assert torch.equal(found, whole(name, key)), (name, key)
        assert torch.load(tmp_path / "all" / "zero" / name / "step.pt") == 7
    assert told[-1] == (len(told), len(told))
    assert (document["universal"], document["parameter_groups"]) == (True, 1)
    manifests.check_files(tmp_path / "all", manifests.read_manifest(tmp_path / "all"))
    assert (tmp_path / "latest_universal").read_text() == "all"
    head = torch.load(tmp_path / "all" / "mp_rank_01_model_states.pt", weights_only=False)
    assert (head["note"], head["optimizer"]) == ("kept", None)
    common = torch.load(tmp_path / "all" / "zero" / "optimizer_state.pt", weights_only=False)
    assert common["param_groups"][0]["lr"] == 0.1
    assert (common["ds_version"], common.get("clip_grad")) == ("0.19.8", 0.5 if zero else None)


@pytest.mark.parametrize("states", [True, False])
def test_an_optimizer_without_zero_takes_weights_and_state(tmp_path: Path, states: bool) -> None:
    convert(write_checkpoint(tmp_path / "saved", replicas=2, zero=True), tmp_path / "all")
    parameters = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in reversed(SHAPES.items())}
    optimizer = torch.optim.AdamW(parameters.values(), lr=1.0)
    load_parameters(tmp_path / "all", optimizer, {p: name for name, p in parameters.items()}, states=states)
    for name, parameter in parameters.items():
        assert torch.equal(parameter, whole(name, "fp32"))
        if states:
            assert torch.equal(optimizer.state[parameter]["exp_avg"], whole(name, "exp_avg"))
            assert optimizer.state[parameter]["step"] == 7
    assert optimizer.param_groups[0]["lr"] == (0.1 if states else 1.0)
    assert bool(optimizer.state) == states


def test_lost_slices_are_noticed_and_nothing_is_left(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "saved", replicas=2, zero=True)
    (source / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    seal(source)
    with pytest.raises(CheckpointError, match=r"holds \d+ of \d+ values of"):
        convert(source, tmp_path / "all")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def refused(source: Path, target: Path) -> str:
    """The sentence of a conversion that leaves nothing behind."""
    with pytest.raises(CheckpointError) as caught:
        convert(source, target)
    assert "\n" not in str(caught.value)
    assert not [path for path in target.parent.glob(".*") if path.is_dir()]
    assert not target.exists()
    return str(caught.value)


@pytest.mark.parametrize("name", ["zero_pp_rank_0_mp_rank_01_optim_states.pt", "mp_rank_00_model_states.pt"])
@pytest.mark.parametrize("byte", [b"\0", b"x", b"\x80"])
def test_garbage_of_the_right_size_is_named(tmp_path: Path, name: str, byte: bytes) -> None:
    source = write_checkpoint(tmp_path / "saved", replicas=2, zero=True)
    (source / name).write_bytes(byte * (source / name).stat().st_size)
    assert refused(source, tmp_path / "all").startswith(f"{source / name}: its content has the SHA-256 ")
    # Even where the manifest has been made to agree.
    seal(source)
    assert refused(source, tmp_path / "all").startswith(f"{source / name}: cannot be read (")


@pytest.mark.parametrize("name", ["layer_00-model_states.pt", "zero_pp_rank_0_mp_rank_01_optim_states.pt"])
def test_a_value_that_changed_on_the_disk_is_noticed(tmp_path: Path, name: str) -> None:
    source = write_checkpoint(tmp_path / "saved", replicas=2, zero=True)
    content = bytearray((source / name).read_bytes())
    held = torch.load(source / name, weights_only=False)
    tensor = held["weight"] if "weight" in held else held["optimizer_state_dict"]["single_partition_of_fp32_groups"][0]
    content[content.index(tensor.flatten()[:2].numpy().tobytes())] ^= 1
    (source / name).write_bytes(content)
    assert refused(source, tmp_path / "all").startswith(f"{source / name}: its content has the SHA-256 ")


def test_files_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "saved", replicas=1, zero=True)
    name = "mp_rank_01_model_states.pt"
    for head, sentence in (
        ({"ds_version": "0"}, "its files do not hold what a checkpoint of ds_dip does (KeyError: 'ds_dip')"),
        ({"ds_dip": {"parameters": [{"../../x": (1,)}], "tied": {}}}, "has a parameter named '../../x'"),
    ):
        torch.save(head, source / name)
        seal(source)
        assert refused(source, tmp_path / "all").startswith(f"{source}: {sentence}")
    document = json.loads((source / manifests.NAME).read_text())
    (source / manifests.NAME).write_text(json.dumps(document | {"pipeline_ranks": 60000}))
    assert "has no file mp_rank_02_model_states.pt" in refused(source, tmp_path / "all")


def test_a_target_that_cannot_be_is_refused_before_the_work(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "saved", replicas=1, zero=True)
    before = sorted(source.iterdir())
    assert "lies in the checkpoint" in refused(source, source / "all")
    assert "lies in the checkpoint" in refused(source, source / "deep" / "all")
    assert sorted(source.iterdir()) == before
    (tmp_path / "file").write_text("")
    assert refused(source, tmp_path / "file" / "all").startswith(f"{tmp_path}/file/all: cannot be written (")
    (tmp_path / "b" / "latest_universal").mkdir(parents=True)
    assert "latest_universal: is a folder" in refused(source, tmp_path / "b" / "all")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="exists already"):
        convert(source, tmp_path / "link")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_conversion_that_is_ended_leaves_nothing(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(tmp_path / "saved", replicas=1, zero=True)
    handler = signal.getsignal(number)
    save = torch.save

    def ended(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(torch, "save", ended)
    assert invoke("convert", source, tmp_path / "all").exit_code == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    assert signal.getsignal(number) == handler


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, ["checkpoint", *map(str, arguments)])


def test_the_command_converts_once_and_shows_both_forms(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "runs" / "global_step3", replicas=2, zero=True)
    (tmp_path / "runs" / "latest").write_text("global_step3")
    result = invoke("show", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    for words in ("step         3", "2 pipeline ranks x 2 replicas", "language layers 4-5 on rank 1, lap 1", "seed 0"):
        assert words in result.output
    target = tmp_path / "converted here+(now)" / "u"
    result = invoke("convert", tmp_path / "runs", target)
    assert result.exit_code == 0, result.output
    assert f"load_checkpoint({str(target.parent)!r}, 'u')" in result.output
    assert json.loads(invoke("show", target, "--json").output)["universal"]
    assert "(universal)" in invoke("show", target).output
    for arguments, sentence in (
        ((source, target), "exists already"),
        ((target, tmp_path / "again"), "is universal already"),
        ((tmp_path / "nowhere", tmp_path / "again"), "there is no such checkpoint"),
    ):
        result = invoke("convert", *arguments)
        assert result.exit_code == 2
        assert sentence in result.output
        assert len(result.output.splitlines()) == 1, result.output


def test_a_full_disk_leaves_no_half_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_checkpoint(tmp_path / "saved", replicas=1, zero=True)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "zero/0.weight/fp32.pt")

    monkeypatch.setattr(torch, "save", full)
    result = invoke("convert", source, tmp_path / "all")
    assert result.exit_code == 2
    assert result.output.strip() == "ds-dip: zero/0.weight/fp32.pt: No space left on device"
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
