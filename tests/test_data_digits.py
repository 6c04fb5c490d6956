import re

import numpy as np
import pytest

from ds_dip.data.collate import collate
from ds_dip.data.digits import (
    _DEVIATION,
    ANSWER,
    BEGIN,
    END,
    IMAGE,
    VOCABULARY,
    Digits,
    _digits,
    _mean_image,
    digit_hits,
)

TRAIN, HELD_OUT = Digits(2000), Digits(500, split="held_out")


def text(dataset, index):
    loaded = dataset.load(dataset.metadata(index).id, ["tokens", "labels"])
    return loaded["tokens"][0], loaded["labels"][0]


@pytest.mark.parametrize("dataset", [TRAIN, HELD_OUT, Digits(300, patch=4, merge=1), Digits(300, merge=4)])
def test_metadata_agree_with_what_is_loaded(dataset):
    for start in range(0, 300, 30):
        samples = [dataset.metadata(index) for index in range(start, start + 30)]
        images = sum(len(sample.modules["vision"]) for sample in samples)
        vision = collate(dataset, samples, "vision", ["pixels"], 0, images)
        language = collate(dataset, samples, "language", ["tokens", "labels"], 0, 30)
        assert vision["pixels"].shape == (sum(sum(s.modules["vision"]) for s in samples), dataset.patch**2)
        assert vision["pixels"].dtype == np.float32
        assert language["tokens"].dtype == language["labels"].dtype == np.int64
        assert (language["labels"] != -100).sum() == sum(sample.loss_tokens for sample in samples)
        assert (language["tokens"] == IMAGE).sum() == sum(sum(sample.merged["vision"]) for sample in samples)


def test_samples_follow_from_their_index():
    again = Digits(2000)
    for index in (0, 7, 1999):
        sample = TRAIN.metadata(index).id
        assert again.metadata(index) == TRAIN.metadata(index)
        first, second = TRAIN.load(sample, ["tokens", "pixels"]), again.load(sample, ["pixels", "tokens"])
        assert np.array_equal(first["tokens"][0], second["tokens"][0])
        assert all(np.array_equal(a, b) for a, b in zip(first["pixels"], second["pixels"], strict=True))
    assert not np.array_equal(text(TRAIN, 1)[0], text(Digits(2000, seed=1), 1)[0])


def test_held_out_images_are_not_trained_on():
    (train, train_classes), (held_out, held_out_classes) = _digits()["train"], _digits()["held_out"]
    assert len(train) + len(held_out) == 1797
    seen = {image.tobytes() for image in train}
    assert not any(image.tobytes() in seen for image in held_out)
    for digit in range(10):
        share = (held_out_classes == digit).sum() / ((held_out_classes == digit).sum() + (train_classes == digit).sum())
        assert share == pytest.approx(0.2, abs=0.01)


def images_of(dataset, index):
    """A sample's images [8, 8], put together from their patches, with pixels from 0 to 1."""
    for pixels in dataset.load(dataset.metadata(index).id, ["pixels"])["pixels"]:
        image = pixels.reshape(4, 4, 2, 2).transpose(0, 2, 1, 3).reshape(8, 8)
        yield image * _DEVIATION + _mean_image()


def nearest(image, split):
    """The split's image nearest to this one, and how far it is, as a mean over pixels."""
    distances = np.abs(_digits()[split][0] - image).mean(axis=(1, 2))
    return int(distances.argmin()), float(distances.min())


def test_held_out_samples_show_the_images_as_they_are():
    for index in range(50):
        for image in images_of(HELD_OUT, index):
            assert nearest(image, "held_out")[1] < 1e-6


def test_training_images_vary_from_sample_to_sample_but_stay_digits():
    distances = [nearest(image, "train")[1] for index in range(200) for image in images_of(TRAIN, index)]
    assert np.isfinite(distances).all()
    assert min(distances) > 0.01
    assert np.median(distances) < 0.25


def conversation(tokens):
    """Turns of a prompt and its answer, as text."""
    assert tokens[0] == BEGIN
    assert tokens[-1] == END
    return [turn.split(chr(ANSWER)) for turn in "".join(map(chr, tokens[1:-1])).split(chr(END))]


def test_the_answers_are_supervised_and_nothing_else():
    for index in range(300):
        tokens, labels = text(TRAIN, index)
        assert tokens.max() < VOCABULARY
        supervised = labels != -100
        assert np.array_equal(labels[supervised], tokens[1:][supervised[:-1]])
        assert not supervised[-1]
        answers = "".join(answer + chr(END) for _, answer in conversation(tokens))
        assert "".join(map(chr, labels[supervised])) == answers


def test_the_answers_name_images_and_typed_digits_by_their_letters_in_order():
    lengths = []
    for index in range(300):
        if not TRAIN.metadata(index).modules["vision"]:
            continue
        turns = conversation(text(TRAIN, index)[0])
        lengths.append(len(turns))
        for prompt, answer in turns:
            marks, names = (re.findall(r"([a-z])([0-9]|\x04)", part) for part in (prompt, answer))
            assert "".join(map("".join, names)) == answer
            assert [letter for letter, _ in names] == [letter for letter, _ in marks]
            assert all(named == digit for (_, digit), (_, named) in zip(marks, names, strict=True) if digit.isdigit())
    assert 1 in lengths
    assert max(lengths) > 3


def test_the_answer_names_the_held_out_images_in_order():
    for index in range(100):
        tokens, labels = text(HELD_OUT, index)
        assert len(conversation(tokens)) == 1
        named = [label - ord("0") for label in labels if ord("0") <= label <= ord("9")]
        assert named == [
            _digits()["held_out"][1][nearest(image, "held_out")[0]] for image in images_of(HELD_OUT, index)
        ]


def test_images_are_none_to_twelve_with_a_heavy_tail():
    counts = np.array([len(TRAIN.metadata(index).modules["vision"]) for index in range(2000)])
    assert counts.min() == 0
    assert counts.max() == 12
    assert 0.15 < (counts == 0).mean() < 0.35
    assert 0.02 < (counts >= 8).mean() < 0.2
    assert all(len(HELD_OUT.metadata(index).modules["vision"]) for index in range(500))


def test_text_tasks_are_right():
    seen = set()
    for index in range(2000):
        if TRAIN.metadata(index).modules["vision"]:
            continue
        for prompt, answer in conversation(text(TRAIN, index)[0]):
            task, _, given = prompt.partition(" ")
            expected = {
                "repeat": given,
                "reverse": given[::-1],
            }.get(task, "".join(re.findall(r"[a-z][0-9]", prompt)))
            assert answer == expected
            seen.add(task)
    assert seen >= {"repeat", "reverse", "read"}


def test_metadata_touch_no_image(monkeypatch):
    monkeypatch.setattr("ds_dip.data.digits._digits", lambda: pytest.fail("an image was read"))
    Digits(50).metadata(7)


def test_hits_count_the_digits_of_the_answers():
    labels = np.array([-100, ord("3"), ord("a"), ord("7"), END])
    assert digit_hits(np.array([0, ord("3"), ord("b"), ord("1"), 0]), labels) == (1, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "test"}, "split is 'test', expected one of train, held_out"),
        ({"samples": 0}, "samples is 0"),
        ({"images": 40}, "images is 40"),
        ({"patch": 3}, "patch is 3"),
        ({"merge": 3}, "merge 3"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Digits(**({"samples": 10} | options))


def test_unknown_samples_and_fields_are_refused():
    for sample in ("train-2000", "held_out-0", "train", "train--1"):
        with pytest.raises(ValueError, match=f"sample '{sample}' is not of this dataset"):
            TRAIN.load(sample, ["tokens"])
    with pytest.raises(ValueError, match="field 'sound' was asked for"):
        TRAIN.load("train-0", ["sound"])
    with pytest.raises(IndexError, match="sample 2000"):
        TRAIN.metadata(2000)
