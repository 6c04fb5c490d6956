"""What is told of files of conversations, on the screen and as files."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from ds_dip.cli import cli
from ds_dip.data import SampleMetadata, read_batch
from ds_dip.profiling.conversations import balance_of
from tests.media_cases import DEMO, asked, film, lines, picture, tiny_model


def run(folder: Path, *arguments: str) -> Result:
    given = ["data", "inspect", *arguments, "--model", tiny_model(folder), "--index", str(folder / "index")]
    return CliRunner().invoke(cli, given)


def test_what_is_in_the_files(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", mode="P")
    records = [asked("q"), asked(images=["a.png"]), asked("<image>" * 3, images=["a.png"] * 3), asked()]
    path = str(lines(tmp_path / "a.jsonl", records))
    result = run(tmp_path, path, "--picture", str(tmp_path / "a.svg"), "--batch", str(tmp_path / "b.jsonl"))
    assert result.exit_code == 1, result.output
    text = " ".join(result.output.split())
    for words in (
        "3 samples, 1 problems",
        "image 4 2",
        "text alone 1",
        "4 x image: palette",
        "vision, instances 1.3 1 3 3",
        f"large: {tmp_path}/a.jsonl: line 3: vision 12 in 3, language",
        "images of a sample 2.0 2",
        "image, longer side 40.0 40 40 40",
        f"{tmp_path}/a.jsonl: line 4: has 1 <image> in its text and lists 0 images",
    ):
        assert words in text, words
    assert len([e for e in ET.parse(tmp_path / "a.svg").iter() if e.tag.endswith("rect")]) > 4
    samples = read_batch(tmp_path / "b.jsonl")
    assert [sample.modules["vision"] for sample in samples] == [(), (4,), (4, 4, 4)]


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    (folder := tmp_path / "a[" / "b]").mkdir(parents=True)
    path = str(lines(folder / "[v2].jsonl", [asked("q")]))
    result = run(tmp_path, path)
    assert result.exit_code == 0, result.output
    assert f"large: {path}: line 1: language" in result.output
    assert "([v2]-0)" in result.output


def test_what_is_read_is_not_replaced(tmp_path: Path) -> None:
    path = str(lines(tmp_path / "a.jsonl", [asked("q")]))
    before = Path(path).read_bytes()
    for option in ("--picture", "--batch"):
        result = run(tmp_path, path, option, path)
        assert (result.exit_code, f"{path}: is read as well" in result.output) == (2, True), result.output
    result = run(tmp_path, path, *(part for option in ("--picture", "--batch") for part in (option, f"{tmp_path}/b")))
    assert (result.exit_code, "--picture and --batch both name" in result.output) == (2, True), result.output
    assert (Path(path).read_bytes(), (tmp_path / "b").exists()) == (before, False)


def test_everything_as_json(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", range(0, 300, 4))
    records = [asked("q"), asked("<video>?", videos=["a.mp4"]), asked()]
    result = run(tmp_path, str(lines(tmp_path / "a.jsonl", records)), "--json", "--batch-size", "2")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["samples"], found["media"], found["having"]) == (2, {"video": 1}, {"text alone": 1, "video": 1})
    assert found["histograms"]["video, seconds"]["mean"] == pytest.approx(3.0, abs=0.1)
    assert found["histograms"]["videos of a sample"]["counts"] == [1]
    assert found["worst"][0]["place"] == f"{tmp_path}/a.jsonl: line 2"
    assert found["problems"] == 1
    assert found["first_problems"] == [
        f"{tmp_path}/a.jsonl: line 3: has 1 <image> in its text and lists 0 images; give each its place"
    ]
    assert found["balance"]["assigned"]["language"] >= 1.0


def test_real_files_without_problems(tmp_path: Path) -> None:
    result = run(tmp_path, str(DEMO / "mllm_demo.json"), str(DEMO / "mllm_video_demo.json"), "--batch-size", "4",
                 "--microbatches", "2", "--decode")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "9 samples, 0 problems" in result.output
    assert "language: 1." in result.output
    again = run(tmp_path, str(DEMO / "mllm_demo.json"), str(DEMO / "mllm_video_demo.json"), "--worst", "0")
    assert "large:" not in again.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("a.csv",), "is of no form that is read"),
        (("nowhere.json",), "cannot be read"),
        (("a.jsonl", "--pretrained", "x"), "give --pretrained FOLDER or --model MODEL.json"),
        (("a.jsonl", "--prefix", "data"), "'data' is not BEGINNING=INSTEAD"),
        (("a.jsonl", "--batch-size", "9"), "the global batch is 9 samples"),
        (("a.jsonl", "--batch-size", "2", "--microbatches", "3"), "less than one sample a microbatch"),
        (("a.jsonl", "--picture", "no/folder.svg"), "there is no folder"),
    ],
)
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "a.jsonl", [asked("q"), asked("r")])
    result = run(tmp_path, *arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert not (tmp_path / "nowhere.json.index").exists()


def test_a_path_may_lose_its_beginning(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    path = str(lines(tmp_path / "a.jsonl", [asked(images=["data/x/a.png"])]))
    assert "1 samples, 0 problems" in run(tmp_path, path, "--prefix", "data/x/=").output
    assert "is not there" in run(tmp_path, path).output


def test_balance_by_hand() -> None:
    samples = [
        SampleMetadata(str(n), {"vision": (size,), "language": (10,)}, 1) for n, size in enumerate((40, 40, 10, 10))
    ]
    balance = balance_of(samples, 4, 1, 2)
    assert balance.assigned == {"vision": 1.0, "language": 1.0}
    assert balance.drawn["vision"] in (1.0, 1.6)
