"""Pictures with captions: sizes before decoding, and latents as the pipeline's own encoder gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers")
from diffusers import AutoencoderKL
from PIL import Image

from ds_dip.data.pictures import Pictures
from ds_dip.files import FileError
from tests.hf_folders import write_pipeline

PICTURES = Path(__file__).parent / "data" / "mllm_demo" / "mllm_demo_data"
CAPTIONS = {"1.jpg": "Two players celebrate.", "2.jpg": "A player slides on his knees.", "3.jpg": "A speech."}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    write_pipeline(folder, list(CAPTIONS.values()))
    return folder


def listed(folder: Path, rows: list[Any]) -> str:
    for name in CAPTIONS:
        if not (folder / name).exists():
            (folder / name).write_bytes((PICTURES / name).read_bytes())
    path = folder / "metadata.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def captioned(folder: Path) -> str:
    return listed(folder, [{"file_name": name, "text": text} for name, text in CAPTIONS.items()])


def test_loaded_arrays_are_of_the_sizes_that_were_told(pipeline: Path, tmp_path: Path) -> None:
    data = Pictures(captioned(tmp_path), str(pipeline), size=64)
    assert len(data) == 3
    for index in range(3):
        metadata = data.metadata(index)
        loaded = data.load(metadata.id, ["tokens", "latents", "places"])
        assert metadata.modules == {"text": (len(loaded["tokens"][0]),), "image": (len(loaded["latents"][0]),)}
        assert metadata.merged == {"text": metadata.modules["text"], "image": metadata.modules["text"]}
        rows, columns = (loaded["places"][0][-1] + 1).tolist()
        assert rows * columns == metadata.loss_tokens == metadata.modules["image"][0]
        assert columns > rows  # all three pictures are wide
        assert loaded["latents"][0].shape[1] == 2 * 2 * 4


def test_latents_are_the_encoders_own(pipeline: Path, tmp_path: Path) -> None:
    data = Pictures(captioned(tmp_path), str(pipeline), size=64)
    loaded = data.load("0", ["latents", "places"])
    rows, columns = (loaded["places"][0][-1] + 1).tolist()
    with Image.open(tmp_path / "1.jpg") as image:
        resized = image.convert("RGB").resize((columns * 4, rows * 4), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(resized, dtype=np.float32) / 127.5 - 1).permute(2, 0, 1)[None]
    encoder: Any = AutoencoderKL.from_pretrained(pipeline / "vae")
    with torch.no_grad():
        wanted = encoder.encode(pixels).latent_dist.mean[0] * encoder.config.scaling_factor
    found = loaded["latents"][0].reshape(rows, columns, 2, 2, 4).transpose(4, 0, 2, 1, 3)
    assert np.allclose(found.reshape(wanted.shape), wanted.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"file_name": "none.jpg", "text": "a"}, "line 1: 'none.jpg' cannot be read"),
        ({"file_name": "../1.jpg", "text": "a"}, "lies outside"),
        ({"file_name": "1.jpg"}, "line 1: field 'text' is None"),
        ({"file_name": "1.jpg", "text": " "}, "line 1: field 'text' is ' '"),
        ({"file_name": 3, "text": "a"}, "line 1: field 'file_name' is 3"),
        ([], "line 1"),
    ],
)
def test_bad_lines_are_named(row: Any, words: str, pipeline: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=words):
        Pictures(listed(tmp_path, [row]), str(pipeline))


def test_what_is_missing_is_named(pipeline: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no picture is named"):
        Pictures(listed(tmp_path, []), str(pipeline))
    with pytest.raises(ValueError, match="size is 2 and length 300; give at least 4 pixels"):
        Pictures(captioned(tmp_path), str(pipeline), size=2)
    with pytest.raises(FileError, match="transformer/config.json"):
        Pictures(captioned(tmp_path), str(tmp_path))
