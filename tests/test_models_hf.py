"""Whatever the plan, a model of transformers that is split has the library's own loss and gradients."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")
from tests import hf_cases as cases

#: Which modules are frozen, by the number of ranks.
FROZEN = {1: ("encoder",), 2: (), 4: ("encoder", "projector")}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
#: Text alone, one picture, several, a video, a video and a picture, several pictures.
MIXED = (0, 1, 2, 3, 4, 7)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_loss_and_gradients_are_the_librarys(family: str, ranks: int, dtype: torch.dtype) -> None:
    make, sample = cases.FAMILIES[family]
    encoder = "audio" if family == "qwen2_audio" else "vision"
    frozen = () if family == "llama" else tuple(encoder if n == "encoder" else n for n in FROZEN[ranks])
    loss, expected, errors = cases.compare(
        make(), sample, MIXED, ranks=ranks, laps=1 + (ranks < 4), seed=ranks, dtype=dtype, frozen=frozen
    )
    assert loss == pytest.approx(expected, rel=TOLERANCE[dtype])
    assert errors
    assert max(errors.values()) <= TOLERANCE[dtype], max(errors, key=lambda name: errors[name])


@pytest.mark.parametrize("chosen", [(0, 5), (0, 1), (3, 8), (2, 7)], ids=["text", "one", "videos", "several"])
@pytest.mark.parametrize("family", ["llava_onevision", "qwen2_5_vl"])
def test_batches_of_one_kind(family: str, chosen: tuple[int, ...]) -> None:
    make, sample = cases.FAMILIES[family]
    loss, expected, errors = cases.compare(make(), sample, chosen, ranks=2, laps=2, seed=3, dtype=torch.float64)
    assert loss == pytest.approx(expected, rel=1e-10)
    assert max(errors.values()) <= 1e-10
