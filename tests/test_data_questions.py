"""Image questions: the published records' shares and lengths, refusals, and no images."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ds_dip.data.questions import SOURCES, ImageQuestions


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_tiles_and_text_are_as_counted(source: str) -> None:
    dataset = ImageQuestions(4000, (source,))
    samples = [dataset.metadata(index) for index in range(len(dataset))]
    tiles = Counter(len(sample.modules["vision"]) for sample in samples)
    shares, texts = SOURCES[source]
    for count, share in shares.items():
        assert tiles[count] / 4000 == pytest.approx(share, abs=0.03)
    text = np.array([sample.loss_tokens for sample in samples])
    assert texts[0] <= text.min()
    assert text.max() <= texts[-1]
    assert np.median(text) == pytest.approx(texts[4], rel=0.1)


def test_a_sample_s_sequence_holds_its_tiles_and_its_text() -> None:
    sample = ImageQuestions(10).metadata(3)
    assert sample.modules["language"] == (sum(sample.merged["vision"]) + sample.loss_tokens,)
    assert sample == ImageQuestions(10).metadata(3)
    assert sample != ImageQuestions(10, seed=1).metadata(3)


@pytest.mark.parametrize(
    ("samples", "sources", "sentence"),
    [(0, ("ai2d",), "samples is 0"), (1, (), "sources is"), (1, ("coco",), "some of ai2d, docvqa")],
)
def test_what_it_cannot_draw_is_refused(samples: int, sources: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ImageQuestions(samples, sources)


def test_it_has_no_images() -> None:
    with pytest.raises(ValueError, match="no images"):
        ImageQuestions(1).load("ai2d-0", ["pixels"])
