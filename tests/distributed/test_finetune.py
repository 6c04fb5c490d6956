"""launch/finetune.py: a folder of transformers learns conversations about images, and its copy says them by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
from peft import PeftModel
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from ds_dip.data.conversations import Conversations
from tests.distributed.ranks import EXTENSIONS, PORT, ROOT, remove_leftovers
from tests.hf_folders import write_folder

STEPS = 75
CHATS = [
    {
        "messages": [
            {"role": "user", "content": "<image>Which colour?"},
            {"role": "assistant", "content": "It is red."},
            {"role": "user", "content": "And this one?<image>"},
            {"role": "assistant", "content": "That one is blue, not red."},
        ],
        "images": ["red.png", "blue.png"],
    },
    {
        "messages": [
            {"role": "user", "content": "<image>Which colour?"},
            {"role": "assistant", "content": "Blue, all over."},
        ],
        "images": ["blue.png"],
    },
    {
        "messages": [
            {"role": "user", "content": "Hello!"},
            {"role": "assistant", "content": "Show me a picture."},
        ]
    },
]


def data_in(folder: Path) -> Path:
    """The conversations and their pictures."""
    for name, colour in (("red", (250, 20, 20)), ("blue", (20, 20, 250))):
        Image.new("RGB", (90, 60), colour).save(folder / f"{name}.png")
    path = folder / "chats.json"
    path.write_text(json.dumps(CHATS))
    return path


def config_in(folder: Path, steps: int) -> Path:
    document = json.loads((ROOT / "launch" / "finetune_ds_config.json").read_text())
    document["scheduler"]["params"]["total_num_steps"] = steps
    path = folder / "ds_config.json"
    path.write_text(json.dumps(document))
    return path


def finetune(folder: Path, family: str, data: Path, steps: int, *options: str) -> list[float]:
    """Run launch/finetune.py on two ranks; the losses."""
    write_folder(folder / "model", family, data)
    command = [
        str(Path(sys.executable).parent / "deepspeed"), "--num_gpus", "2", "--master_port", str(PORT),
        "launch/finetune.py", "--model", str(folder / "model"), "--data", str(data), "--out", str(folder / "out"),
        "--run-folder", str(folder / "run"), "--steps", str(steps), *options,
        "--deepspeed", "--deepspeed_config", str(config_in(folder, steps)),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(EXTENSIONS),
    }
    log = folder / "log.txt"
    try:
        with log.open("wb") as stream:
            subprocess.run(command, cwd=ROOT, env=environment, stdout=stream, stderr=stream, timeout=500, check=True)
    except subprocess.CalledProcessError as error:
        raise AssertionError(log.read_text()[-4000:]) from error
    finally:
        remove_leftovers()
    return json.loads((folder / "run" / "summary.json").read_text())["losses"]  # type: ignore[no-any-return]


def said(folder: Path, data: Path, index: int) -> tuple[str, str]:
    """(what plain transformers generates for the last question of a conversation, what it was taught)."""
    model: Any = AutoModelForImageTextToText.from_pretrained(folder)
    words, processor = AutoTokenizer.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
    processor_of = {"pretrained": str(folder), "encoders": ["vision"]}
    chats = Conversations(files=str(data), processor=processor_of, index=str(folder.parent / "index"))
    loaded = chats.load(chats.metadata(index).id, ["tokens", "labels"])
    tokens, labels = loaded["tokens"][0], loaded["labels"][0]
    # Labels are the next token: the last thing said begins behind the last row that supervises it and follows none.
    first = max(n for n in range(len(labels)) if labels[n] >= 0 and (n == 0 or labels[n - 1] < 0)) + 1
    given: dict[str, Any] = {"input_ids": torch.from_numpy(tokens[:first])[None]}
    images = []
    for name in json.loads(data.read_text())[index].get("images", ()):
        with Image.open(data.parent / name) as image:
            images.append(image.convert("RGB"))
    if images:
        given |= dict(processor(images=[images], return_tensors="pt"))
        if model.config.model_type == "qwen2_5_vl":
            given["mm_token_type_ids"] = (given["input_ids"] == model.config.image_token_id).int()
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    wanted = tokens[first:][labels[first - 1 : -1] >= 0]
    generated = model.generate(**given, do_sample=False, max_new_tokens=len(wanted) + 8)[0, first:].numpy()
    return words.decode(generated, skip_special_tokens=True), words.decode(np.array(wanted), skip_special_tokens=True)


@pytest.mark.parametrize("family", ["qwen2_5_vl", pytest.param("llava_onevision", marks=pytest.mark.nightly)])
def test_a_model_learns_and_its_copy_says_what_it_learnt(family: str, tmp_path: Path) -> None:
    data = data_in(tmp_path)
    losses = finetune(tmp_path, family, data, STEPS)
    assert losses[-1] < 0.05 * losses[0]
    for index in range(len(CHATS)):
        generated, wanted = said(tmp_path / "out", data, index)
        assert generated == wanted.rstrip()
        assert CHATS[index]["messages"][-1]["content"] in wanted


@pytest.mark.nightly
def test_adapters_learn_beside_a_frozen_tower(tmp_path: Path) -> None:
    data = data_in(tmp_path)
    losses = finetune(tmp_path, "qwen2_5_vl", data, 60, "--lora", "8", "--frozen", "vision", "projector")
    assert losses[-1] < 0.8 * losses[0]
    before, after = (AutoModelForImageTextToText.from_pretrained(tmp_path / name) for name in ("model", "out"))
    for name, weight in before.named_parameters():
        assert torch.equal(weight, after.get_parameter(name)), name
    adapted = PeftModel.from_pretrained(after, tmp_path / "out" / "adapter")
    added = {name: weight for name, weight in adapted.named_parameters() if "lora_B" in name}
    assert added
    assert all("language_model" in name and weight.abs().max() > 0 for name, weight in added.items())
