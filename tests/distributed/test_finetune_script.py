"""launch/finetune.sh as the README has it: real conversations about pictures, on two ranks, until they are learnt."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("diffusers")
from diffusers import PixArtAlphaPipeline, PixArtTransformer2DModel

from tests.distributed.ranks import EXTENSIONS, PORT, ROOT, remove_leftovers
from tests.distributed.test_finetune import said
from tests.hf_folders import write_folder, write_pipeline

DEMO = ROOT / "tests" / "data" / "mllm_demo"


def repository(folder: Path) -> Path:
    """A repository as set-up leaves it: this one's scripts, and this interpreter's environment as its own."""
    (folder / ".venv").mkdir(parents=True)
    for path in Path(sys.prefix).iterdir():
        if path.name not in (".ds_dip-setup", "torch_extensions"):
            (folder / ".venv" / path.name).symlink_to(path)
    (folder / ".venv" / "torch_extensions").symlink_to(EXTENSIONS)
    for name in ("launch", "setup.cfg"):
        (folder / name).symlink_to(ROOT / name)
    decides = b"".join((ROOT / name).read_bytes() for name in ("setup.cfg", "launch/constraints.txt"))
    (folder / ".venv" / ".ds_dip-setup").write_text(f"{hashlib.sha256(decides).hexdigest()} {folder}\n")
    return folder


def start(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the script where its paths are relative to ``folder``."""
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    script = ["bash", "launch/finetune.sh", "--master_port", str(PORT), *options]
    try:
        return subprocess.run(
            script, cwd=folder, env=environment, capture_output=True, text=True, timeout=550, check=False
        )
    finally:
        remove_leftovers()


def learnt(folder: Path) -> list[float]:
    """The losses of a run in ``folder``, said to whoever looks."""
    summary = json.loads((folder / "runs" / "finetune" / "summary.json").read_text())
    losses: list[float] = summary["losses"]
    assert len(losses) == 300
    first, last = sum(losses[:5]) / 5, sum(losses[-50:]) / 50
    print(f"loss {losses[0]:.3f} to {losses[-1]:.4f} ({first:.3f} in 5 steps to {last:.4f} in 50), "
          f"{summary['seconds']:.0f} s")  # fmt: skip
    return losses


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_onevision"])
def test_the_script_trains_saves_and_the_copy_gives_the_answers(family: str, tmp_path: Path) -> None:
    folder = repository(tmp_path)
    shutil.copytree(DEMO, folder / "data")
    data = folder / "data" / "mllm_demo.json"
    write_folder(folder / "model", family, data)
    done = start(folder, "--model", "model", "--data", "data/mllm_demo.json")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    losses = learnt(folder)
    assert max(losses[-2:]) < 0.05 * min(losses[:2])
    chats = json.loads(data.read_text())
    for index, chat in enumerate(chats):
        generated, wanted = said(folder / "runs" / "finetuned", data, index)
        assert generated == wanted.rstrip()
        assert chat["messages"][-1]["content"] in wanted


@pytest.mark.nightly
def test_a_pipeline_of_diffusers_learns_pictures(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    shutil.copytree(DEMO / "mllm_demo_data", folder / "data")
    captions = {f"{n}.jpg": text for n, text in enumerate(("Two players.", "On his knees.", "A speech."), start=1)}
    lines = [json.dumps({"file_name": name, "text": text}) for name, text in captions.items()]
    (folder / "data" / "metadata.jsonl").write_text("\n".join(lines))
    write_pipeline(folder / "model", list(captions.values()))
    config = ("--deepspeed_config", "launch/finetune_images_ds_config.json")
    done = start(folder, "--model", "model", "--data", "data/metadata.jsonl", "--size", "32", *config)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    losses = learnt(folder)
    # Noise and times are new in every step, so the loss falls on average.
    assert sum(losses[-50:]) / 50 < 0.5 * sum(losses[:5]) / 5
    pipeline = PixArtAlphaPipeline.from_pretrained(
        folder / "model", transformer=PixArtTransformer2DModel.from_pretrained(folder / "runs" / "finetuned")
    )
    pipeline.set_progress_bar_config(disable=True)
    (image,) = pipeline("A speech.", num_inference_steps=2, height=32, width=32, use_resolution_binning=False).images
    assert image.size == (32, 32)


def test_the_script_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    (folder / "model").mkdir()
    done = start(folder, "--model", "model", "--data", "data.json", "--out", "trained")
    assert done.returncode != 0
    assert "launch/finetune.py: model has no config.json; give a folder that save_pretrained wrote" in done.stderr
    assert "Traceback" not in done.stderr.split("launch/finetune.py:")[0]
    assert not (folder / "trained").exists()
