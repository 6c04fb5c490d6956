"""The adapter of docs/transformers.md splits its family, with the library's own loss and gradients."""

from __future__ import annotations

import importlib
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
from transformers import LlavaConfig, LlavaForConditionalGeneration

from ds_dip.models.hf import split
from tests import hf_cases as cases
from tests import hf_models as models

ROOT = Path(__file__).resolve().parents[1]


def llava() -> Any:
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 4,
              "num_attention_heads": 2, "image_size": 16, "patch_size": 4}  # fmt: skip
    text = models.QWEN_TEXT | {"model_type": "llama"}
    return models.drawn(
        LlavaForConditionalGeneration, LlavaConfig(text_config=text, vision_config=vision, image_token_id=3)
    )


def sample(index: int) -> models.Sample:
    """No to three pictures."""
    rng, noise, pictures = random.Random(index), np.random.default_rng(index), []
    text = [rng.randrange(10, models.VOCABULARY) for _ in range(3)]
    for _ in range(index % 4):
        pictures.append(noise.standard_normal((1, 3, 16, 16)))
        text += [3] * 16 + [rng.randrange(10, models.VOCABULARY)]
    tokens = np.array(text)
    labels, following = models.labels_of(tokens, rng, (3,))
    pixels = [np.insert(models.rows_of(own, 4), 0, 0.0, axis=0) for own in pictures]
    given: dict[str, Any] = {"input_ids": tokens, "labels": labels}
    if pictures:
        given["pixel_values"] = torch.from_numpy(np.concatenate(pictures))
    return models.encoded(index, "vision", tokens, following, {"pixels": pixels}, [16] * len(pictures), given)


@pytest.mark.parametrize("frozen", [(), ("vision",)], ids=["trained", "frozen"])
def test_the_documented_adapter_has_the_librarys_gradients(
    frozen: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "transformers.md").read_text(), re.DOTALL)
    (tmp_path / "my_llava.py").write_text(codes[-1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(split, "FAMILIES", dict(split.FAMILIES))
    importlib.import_module("my_llava")
    split.add_family("llava", "my_llava")
    loss, expected, errors = cases.compare(
        llava(), sample, (0, 1, 2, 3), ranks=2, laps=1, seed=1, dtype=torch.float64, frozen=frozen
    )
    assert loss == pytest.approx(expected, rel=1e-10)
    assert max(errors.values()) <= 1e-10
