"""The dataset: sizes from the index, arrays that agree with them, and one policy for what is no sample."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds_dip.data import DatasetReference, collate
from ds_dip.data.conversations import Conversations
from ds_dip.data.conversations.conversation import Media
from ds_dip.data.conversations.decode import image
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.faults import Fault, Lost, SampleError
from ds_dip.models import load_model
from ds_dip.planning.cut import sizes_of
from tests.media_cases import DEMO, Image, asked, film, lines, picture, sound, tiny_model


def opened(folder: Path, path: Any, **options: Any) -> Conversations:
    options = {"files": path, "processor": {"model": tiny_model(folder)}, "index": str(folder / "index")} | options
    dataset = DatasetReference("ds_dip.data.conversations:Conversations", options).open()
    assert isinstance(dataset, Conversations)
    return dataset


def agree(dataset: Conversations) -> None:
    """Check that every sample loads as its metadata say; collate() compares them."""
    fields = {"vision": ["pixels"], "language": ["tokens", "labels"]}
    for index in range(len(dataset)):
        metadata = dataset.metadata(index)
        for module, own in fields.items():
            if metadata.modules[module]:
                arrays = collate(dataset, [metadata], module, own, 0, len(metadata.modules[module]))
        assert int((arrays["labels"] >= 0).sum()) == metadata.loss_tokens > 0
        assert int((arrays["tokens"] == 4).sum()) == sum(metadata.merged["vision"])


@pytest.mark.parametrize(
    ("name", "options"),
    [("mllm_demo.json", {}), ("v1_multimodal_demo.jsonl", {"prefixes": {"data/": ""}}), ("mllm_video_demo.json", {})],
)
def test_real_conversations(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    dataset = opened(
        tmp_path, str(DEMO / name), processor={"model": tiny_model(tmp_path), "frames": {"rate": 0.5}}, **options
    )
    assert len(dataset) == {"mllm_demo.json": 6, "v1_multimodal_demo.jsonl": 24, "mllm_video_demo.json": 3}[name]
    sizes_of([dataset.metadata(index) for index in range(len(dataset))], load_model(tiny_model(tmp_path)))
    agree(dataset)


def test_what_is_learned_is_what_the_assistant_says(tmp_path: Path) -> None:
    dataset = opened(tmp_path, str(DEMO / "mllm_demo.json"))
    loaded = dataset.load(dataset.metadata(0).id, ["tokens", "labels"])
    tokens, labels = loaded["tokens"][0], loaded["labels"][0]
    said = bytes(tokens[1:][labels[:-1] >= 0].astype(np.uint8)).decode()
    assert said == "They're Kane and Gretzka from Bayern Munich.\x03They are celebrating on the soccer field.\x03"
    assert (tokens[1:][labels[:-1] >= 0] == labels[labels >= 0]).all()


def test_pixels_are_the_images(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png", 56, 56)
    dataset = opened(tmp_path, str(lines(tmp_path / "a.jsonl", [asked(images=["a.png"])])))
    (pixels,) = dataset.load(dataset.metadata(0).id, ["pixels"])["pixels"]
    whole = pixels.reshape(4, 4, 14, 14, 3).transpose(0, 2, 1, 3, 4).reshape(56, 56, 3)
    assert np.abs((whole + 1) * 127.5 - image(Media("image", "a", str(path)), Facts("image", 56, 56))).max() < 1e-3


BAD: list[Any] = [
    asked(),
    asked(images=["missing.png"]),
    asked("no place", images=["good.png"]),
    asked("hello", " "),
    asked("hello") | {"surprise": 1},
    asked(images=["../outside.png"]),
    asked("<audio>", audios=["sound.wav"]),
    asked(images=["broken.png"]),
    "text",
]
WORDS = ("lists 0 images", "missing.png is not there", "has 0 <image>", "empty answer", "'surprise' is unknown",
         "lies outside", "has no encoder for it", "broken.png", "expected a JSON object")  # fmt: skip


def mixed(folder: Path) -> Path:
    """Good samples around every bad one, of two forms in one file."""
    picture(folder / "good.png")
    picture(folder / "broken.png", 300, 300)
    (folder / "broken.png").write_bytes((folder / "broken.png").read_bytes()[:200])
    sound(folder / "sound.wav")
    records = [asked(images=["good.png"]), {"query": "q", "response": "r"}]
    for number, bad in enumerate(BAD):
        records += [bad, asked("<image>" * (number + 1), images=["good.png"] * (number + 1))]
    return lines(folder / "mixed.jsonl", records)


def test_problems_are_refused_with_file_and_line(tmp_path: Path) -> None:
    path = mixed(tmp_path)
    with pytest.raises(
        ValueError, match=r"9 of 20 records cannot be used: .*mixed\.jsonl: line 3: .*; and 4 more\. Mend"
    ):
        opened(tmp_path, str(path))


def test_problems_are_skipped_and_counted(tmp_path: Path) -> None:
    dataset = opened(tmp_path, str(mixed(tmp_path)), problems="skip")
    assert (len(dataset), dataset.skipped) == (11, 9)
    agree(dataset)
    for number, (problem, words) in enumerate(zip(dataset.problems(), WORDS, strict=True)):
        assert str(problem).startswith(f"{tmp_path}/mixed.jsonl: line {3 + 2 * number}: ")
        assert words in problem.sentence


def test_problems_are_replaced_where_they_stand(tmp_path: Path) -> None:
    skipping = opened(tmp_path, str(mixed(tmp_path)), problems="skip")
    dataset = opened(tmp_path, str(mixed(tmp_path)), problems="replace")
    assert (len(dataset), dataset.skipped) == (20, 9)
    agree(dataset)
    ids = [dataset.metadata(index).id for index in range(20)]
    assert len(set(ids)) == 20
    good = {skipping.metadata(index).id for index in range(11)}
    for index, id in enumerate(ids):
        assert (id in good) == (index < 2 or index % 2 == 1)
        assert id.split("~")[0] in good
    again = opened(tmp_path, str(mixed(tmp_path)), problems="replace")
    assert [again.metadata(index) for index in range(20)] == [dataset.metadata(index) for index in range(20)]
    assert again.digest == dataset.digest != skipping.digest


def test_a_file_without_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    with pytest.raises(ValueError, match="the file has nothing in it"):
        opened(tmp_path, str(tmp_path / "a.jsonl"), problems="skip")
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(ValueError, match="the files have no records"):
        opened(tmp_path, str(tmp_path / "b.json"), problems="skip")


def test_what_breaks_later_is_told_with_its_line(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 80, 80)
    dataset = opened(tmp_path, str(lines(tmp_path / "a.jsonl", [asked("q"), asked(images=["a.png"])])))
    metadata = dataset.metadata(1)
    picture(tmp_path / "a.png", 20, 20)
    with pytest.raises(ValueError, match=r"line 2: image a\.png is 20 x 20, and was 80 x 80 when it was indexed"):
        collate(dataset, [metadata], "vision", ["pixels"], 0, 1)
    os.remove(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.jsonl: line 2: image a\.png is not there"):
        dataset.load(metadata.id, ["pixels"])


def spoiled(path: Path) -> None:
    """Spoil a picture in its middle: header and end are as they were."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 5000] = bytes(range(250)) * 20
    path.write_bytes(bytes(data))


def test_decoding_finds_what_headers_do_not_show(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    spoiled(tmp_path / "a.png")
    path = str(lines(tmp_path / "a.jsonl", [asked("q"), asked(images=["a.png"])]))
    by_header = opened(tmp_path, path)
    with pytest.raises(
        SampleError, match=r'line 2: image a\.png cannot be decoded .*; set problems to skip .* verify to "decode"'
    ):
        by_header.load(by_header.metadata(1).id, ["pixels"])
    dataset = opened(tmp_path, path, verify="decode", problems="skip")
    assert (len(dataset), dataset.skipped) == (1, 1)
    assert "cannot be decoded" in dataset.problems()[0].sentence


def test_what_only_decoding_shows_is_left_out_and_keeps_its_sizes(tmp_path: Path) -> None:
    picture(tmp_path / "good.png", 60, 60)
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    spoiled(tmp_path / "a.png")
    records = [asked("q"), asked(images=["a.png"]), asked(images=["good.png"])]
    dataset = opened(tmp_path, str(lines(tmp_path / "a.jsonl", records)), problems="skip")
    assert dataset.finds_faults
    samples = [dataset.metadata(index).id for index in range(3)]
    dataset.ahead(samples, ["pixels", "labels"])
    (fault,) = dataset.faults(samples, ["pixels", "labels"])
    assert isinstance(fault, Fault)
    assert fault.sample == samples[1]
    assert "a.jsonl: line 2: image a.png cannot be decoded" in fault.sentence
    assert dataset.lost(samples) == Lost()
    dataset.leave_out([samples[1]])
    assert dataset.lost(samples) == Lost(dataset.metadata(1).loss_tokens, 1)
    assert dataset.faults(samples, ["pixels", "labels"]) == []
    for name in ("pixels", "tokens", "labels"):
        module = "vision" if name == "pixels" else "language"
        assert collate(dataset, [dataset.metadata(1)], module, [name], 0, 1)[name].size
    loaded = dataset.load(samples[1], ["labels", "pixels"])
    assert (loaded["labels"][0] == -100).all()
    assert np.ptp(loaded["pixels"][0]) == 0.0
    assert (dataset.load(samples[2], ["labels"])["labels"][0] >= 0).any()


def test_a_missing_file_is_no_fault_of_a_sample(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 60, 60)
    records = [asked("q"), asked(images=["a.png"])]
    dataset = opened(tmp_path, str(lines(tmp_path / "a.jsonl", records)), problems="skip")
    os.remove(tmp_path / "a.png")
    with pytest.raises(
        ValueError, match=r"line 2: image a\.png is not there; it was otherwise when the index was made"
    ):
        dataset.faults([dataset.metadata(1).id], ["pixels"])


@pytest.mark.parametrize("options", [{}, {"problems": "skip", "verify": "decode"}])
def test_a_run_that_stops_at_them_looks_for_no_faults(tmp_path: Path, options: dict[str, Any]) -> None:
    assert not opened(tmp_path, str(lines(tmp_path / "a.jsonl", [asked("q")])), **options).finds_faults


def test_ids_of_files_of_one_name(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        lines(tmp_path / name / "x.jsonl", [asked("q", name)])
    dataset = opened(tmp_path, [str(tmp_path / name / "x.jsonl") for name in "ab"])
    ids = [dataset.metadata(index).id for index in range(2)]
    assert ids == ["x-0", "x#2-0"]
    for id, answer in zip(ids, "ab", strict=True):
        assert ord(answer) in dataset.load(id, ["tokens"])["tokens"][0]
    for wrong in ("y-0", "x-1", "x"):
        with pytest.raises(ValueError, match="is not of this dataset"):
            dataset.load(wrong, ["tokens"])
    with pytest.raises(ValueError, match="field 'smell' was asked for"):
        dataset.load(ids[0], ["smell"])
    with pytest.raises(IndexError):
        dataset.metadata(2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"surprise": 1}, "option 'surprise' of the conversations"),
        ({"problems": "ignore"}, "option 'problems'"),
        ({"limits": {"pixels": 0}}, "option 'limits.pixels'"),
        ({"files": []}, "option 'files'"),
        ({"files": ["a.csv"]}, "is of no form that is read"),
        ({"root": "nowhere"}, "nowhere: is no folder"),
        ({"processor": {}}, "either pretrained"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    path = str(lines(tmp_path / "a.jsonl", [asked("q")]))
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        opened(tmp_path, path, **options)


def test_json_of_two_forms_and_crlf_and_a_mark(tmp_path: Path) -> None:
    records = [{"query": "q", "response": "r"}, asked("a", "b")]
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(records, indent=1).replace("\n", "\r\n").encode())
    assert len(opened(tmp_path, str(tmp_path / "a.json"))) == 2


def test_videos_are_frames(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", range(0, 200, 4))
    options = {"processor": {"model": tiny_model(tmp_path), "frames": {"rate": 2, "most": 3}}}
    dataset = opened(tmp_path, str(lines(tmp_path / "a.jsonl", [asked("<video>?", videos=["a.mp4"])])), **options)
    assert len(dataset.metadata(0).modules["vision"]) == 3
    agree(dataset)
