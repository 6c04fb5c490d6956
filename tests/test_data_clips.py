"""Packed clips: within their limits, sizes that metadata and content agree on, lengths as published."""

from __future__ import annotations

import numpy as np
import pytest

from ds_dip.data import DatasetReference
from ds_dip.data.clips import FRAMES, RATE, SECONDS, SOURCES, PackedClips

SMALL = PackedClips(40, clips=4, context=300, frame=4, numbers=6, vocabulary=50)


def seconds(source: str, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Lengths of many clips of one source."""
    monkeypatch.setattr("ds_dip.data.clips.SOURCES", {source: SOURCES[source]})
    dataset = PackedClips(800)
    sizes = [size for index in range(800) for size in dataset.metadata(index).modules["video"]]
    return np.asarray(sizes) / 256 * FRAMES / RATE


def test_metadata_is_that_of_what_is_loaded() -> None:
    for index in range(len(SMALL)):
        metadata = SMALL.metadata(index)
        loaded = SMALL.load(metadata.id, ["tokens", "latents"])
        assert tuple(map(len, loaded["tokens"])) == metadata.modules["text"] == metadata.merged["video"]
        assert tuple(map(len, loaded["latents"])) == metadata.modules["video"]
        assert {clip.shape[1] for clip in loaded["latents"]} == {6}
        assert max(int(own.max()) for own in loaded["tokens"]) < 50
        assert metadata.loss_tokens == sum(metadata.modules["video"])


def test_a_sample_has_at_most_its_clips_and_its_context() -> None:
    for index in range(len(SMALL)):
        video = SMALL.metadata(index).modules["video"]
        assert 1 <= len(video) <= 4
        assert sum(video) <= 300
        assert all(size % 4 == 0 and size <= SECONDS * RATE / FRAMES * 4 for size in video)


def test_the_same_index_gives_the_same_sample() -> None:
    first, again = (SMALL.load("clips-3", ["latents", "tokens"]) for _ in range(2))
    assert all(np.array_equal(a, b) for name in first for a, b in zip(first[name], again[name], strict=True))
    assert np.array_equal(SMALL.load("clips-3", ["tokens"])["tokens"][0], first["tokens"][0])
    other = PackedClips(40, clips=4, context=300, frame=4, numbers=6, vocabulary=50, seed=1)
    assert any(SMALL.metadata(index) != other.metadata(index) for index in range(40))


def test_internvids_clips_are_as_short_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.mean(seconds("internvid", monkeypatch) < 10) == pytest.approx(0.85, abs=0.02)


def test_webvids_median_clip_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a median of 17 s more than half are cut to 16.
    assert 0.5 < np.mean(seconds("webvid", monkeypatch) == SECONDS) < 0.6


def test_pandas_mean_is_that_of_its_distribution_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.random.default_rng(0).lognormal(np.log(7.1), 0.6, 100_000)
    assert whole.mean() == pytest.approx(8.5, rel=0.01)
    assert seconds("panda", monkeypatch).mean() == pytest.approx(np.minimum(whole, SECONDS).mean(), rel=0.05)


def test_captions_have_the_published_words() -> None:
    dataset = DatasetReference("ds_dip.data.clips:PackedClips", {"samples": 600}).open()
    tokens = [size for index in range(600) for size in dataset.metadata(index).modules["text"]]
    assert 1.35 * 13 < np.mean(tokens) < 1.35 * 17.5


@pytest.mark.parametrize(
    ("options", "message"),
    [({"samples": 0}, "samples is 0"), ({"clips": 0}, "clips is 0"), ({"context": 100}, "at least the 16384 patches")],
)
def test_impossible_sizes_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackedClips(**({"samples": 4} | options))


def test_other_samples_and_fields_are_refused() -> None:
    with pytest.raises(IndexError, match="holds 0 to 39"):
        SMALL.metadata(40)
    with pytest.raises(ValueError, match="expected clips-0 to clips-39"):
        SMALL.load("clips-40", ["tokens"])
    with pytest.raises(ValueError, match="field 'pixels'"):
        SMALL.load("clips-1", ["pixels"])
