"""Bad data, case by case with real files: told with file and line by every policy, and nothing else spoiled."""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds_dip.data.conversations import Conversations
from tests.media_cases import Image, asked, film, lines, picture, sound, tiny_model
from tests.pretrained_cases import audio_folder

Make = Callable[[Path], Any]


def opened(folder: Path, file: Path, index: str = "index", **options: Any) -> Conversations:
    given = {"files": str(file), "processor": {"model": tiny_model(folder)}, "index": str(folder / index)}
    return Conversations(**(given | options))


def loads_as_told(dataset: Conversations, module: str = "vision", field: str = "pixels") -> None:
    for index in range(len(dataset)):
        metadata = dataset.metadata(index)
        loaded = dataset.load(metadata.id, [field, "tokens", "labels"])
        assert tuple(map(len, loaded[field])) == metadata.modules[module]
        assert (len(loaded["tokens"][0]),) == metadata.modules["language"]
        assert int((loaded["labels"][0] >= 0).sum()) == metadata.loss_tokens


def with_image(save: Callable[[Path], object], name: str = "a.png") -> Make:
    def make(folder: Path) -> Any:
        save(folder / name)
        return asked(images=[name])

    return make


def with_video(save: Callable[[Path], object], name: str = "a.mp4") -> Make:
    def make(folder: Path) -> Any:
        save(folder / name)
        return asked("<video>?", videos=[name])

    return make


def with_sound(save: Callable[[Path], object], name: str = "a.wav") -> Make:
    def make(folder: Path) -> Any:
        save(folder / name)
        return asked("<audio>?", audios=[name])

    return make


def cut(make: Callable[[Path], Path], share: float = 0.5) -> Callable[[Path], None]:
    """What ``make`` makes, cut off."""

    def save(path: Path) -> None:
        data = make(path).read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return save


def bomb(path: Path) -> None:
    """A PNG of 34 kilobytes, if it were whole, that says it has 60 000 x 60 000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(1 << 16)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b""))


def deep(path: Path) -> None:
    Image.fromarray(np.linspace(0, 65535, 600).reshape(20, 30).astype(np.uint16)).save(path)


def animated(path: Path) -> None:
    frames = [Image.new("RGB", (9, 9), (80 * n, 0, 0)) for n in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(path, exif=exif)


def linked(path: Path) -> None:
    outside = picture(path.parent.parent / "outside.png")
    path.symlink_to(outside)


TALK = {"role": "assistant", "content": "this"}
#: What is no sample, and words of what is told.
BAD: dict[str, tuple[Make, str]] = {
    "missing": (lambda _: asked(images=["no.png"]), "image no.png is not there"),
    "truncated PNG": (with_image(cut(lambda p: picture(p, 300, 300))), "is cut off"),
    "truncated JPEG": (with_image(cut(picture), "a.jpg"), "image a.jpg has a broken header (Truncated File Read)"),
    "truncated in the pixels": (with_image(cut(lambda p: picture(p, 300, 300), 0.8), "a.jpg"), "is cut off"),
    "truncated MP4": (with_video(cut(lambda p: film(p, range(0, 100, 4)))), "is no video that can be read"),
    "truncated WAV": (with_sound(lambda p: p.write_bytes(sound(p).read_bytes()[:30])), "is no sound that can be read"),
    "empty image": (with_image(lambda p: p.write_bytes(b"")), "is empty (0 bytes)"),
    "empty sound": (with_sound(lambda p: p.write_bytes(b"")), "is empty (0 bytes)"),
    "text as an image": (with_image(lambda p: p.write_text("hello")), "is no image that Pillow knows"),
    "image as a sound": (with_sound(lambda p: picture(p.with_suffix(".png")).rename(p)), "audio a.wav"),
    "bomb": (with_image(bomb), "is too large to decode (Image size (3600000000 pixels)"),
    "folder": (with_image(Path.mkdir), "cannot be read (Is a directory)"),
    "pipe": (with_image(os.mkfifo), "is empty (0 bytes)"),
    "link out of the root": (with_image(linked), "which lies outside"),
    "path out of the root": (lambda _: asked(images=["../outside.png"]), "which lies outside"),
    "absolute path": (lambda _: asked(images=["/etc/hostname"]), "which lies outside"),
    "long path": (lambda _: asked(images=["x" * 5000]), "cannot be read (File name too long)"),
    "address": (lambda _: asked(images=["https://x.org/a.png"]), "download it first"),
    "too few places": (lambda f: asked("q", images=[picture(f / "a.png").name]), "has 0 <image> in its text"),
    "too many places": (lambda f: asked("<image><image>", images=[picture(f / "a.png").name]), "has 2 <image>"),
    "places of another kind": (lambda f: asked("<video>", images=[picture(f / "a.png").name]), "<image> in its text"),
    "no path": (lambda _: asked(images=[None]), "gives None for a medium"),
    "empty answer": (lambda _: asked("q", " "), "turn 2 is an empty answer"),
    "media in an answer": (lambda f: asked("q", "<image>", images=[picture(f / "a.png").name]), "media in an answer"),
    "unknown key": (lambda _: asked("q") | {"surprise": 1}, "key 'surprise' is unknown"),
    "two forms in one record": (lambda _: asked("q") | {"response": "r"}, "expected one of messages"),
    "no turns": (lambda _: {"messages": []}, "has no turns"),
    "no assistant": (lambda _: {"messages": [{"role": "user", "content": "q"}]}, "ends with the user's turn"),
    "ends with a tool": (lambda _: {"messages": [TALK, {"role": "tool", "content": "x"}]}, "ends with the tool's turn"),
    "late system": (lambda _: {"messages": [TALK, {"role": "system", "content": "x"}, TALK]}, "turn 2 is the system's"),
    "unknown role": (lambda _: {"messages": [{"role": "poet", "content": "q"}, TALK]}, "is of role 'poet'"),
    "nothing learned": (lambda _: {"messages": [TALK | {"loss": False}]}, "has no answer that is learned"),
    "half a character": (lambda _: asked("a \ud800 b"), "turn 1 has '\\ud800' in its text, which is half a character"),
    "half a character in a path": (lambda _: asked(images=["\ud800.png"]), "which is half a character"),
    "bad data URL": (lambda _: asked(images=["data:image/png;base64,!!"]), "not base64"),
    "no object": (lambda _: ["a"], "expected a JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_sample_is_told_and_spoils_nothing_else(tmp_path: Path, name: str) -> None:
    make, words = BAD[name]
    (folder := tmp_path / "data").mkdir()
    picture(folder / "good.png")
    # Forms are mixed in one file.
    good = [asked(images=["good.png"]), {"query": "q", "response": "r"}]
    file = lines(folder / "a.jsonl", [good[0], make(folder), good[1]])
    skipping = opened(folder, file, problems="skip")
    assert (len(skipping), skipping.skipped) == (2, 1)
    (problem,) = skipping.problems()
    assert str(problem).startswith(f"{file}: line 2: ")
    assert words in problem.sentence
    assert len(problem.sentence) < 500
    loads_as_told(skipping)
    with pytest.raises(ValueError, match="1 of 3 records cannot be used") as refused:
        opened(folder, file)
    assert str(problem) in str(refused.value)
    replacing = opened(folder, file, problems="replace")
    assert (len(replacing), replacing.skipped) == (3, 1)
    loads_as_told(replacing)
    # Another process, with an index of its own, finds the same.
    assert opened(folder, file, "other", problems="skip").digest == skipping.digest


#: What is unusual and read, and words of what is noted.
ODD: dict[str, tuple[Make, str]] = {
    "1 x 1": (with_image(lambda p: picture(p, 1, 1)), "less than 8 pixels"),
    "20000 x 50": (with_image(lambda p: picture(p, 20000, 50)), "more than 200 times as long"),
    "CMYK": (with_image(lambda p: picture(p, mode="CMYK"), "a.jpg"), "CMYK"),
    "palette": (with_image(lambda p: picture(p, mode="P")), "palette"),
    "16 bits": (with_image(deep), "16 bits"),
    "turned by EXIF": (with_image(turned, "a.jpg"), "turned by EXIF"),
    "animated GIF": (with_image(animated, "a.gif"), "animated"),
    "animated PNG": (with_image(animated), "animated"),
    "several pages": (with_image(animated, "a.tif"), "several pages"),
    "one frame": (with_video(lambda p: film(p, [0])), "one frame"),
    "variable frame rate": (with_video(lambda p: film(p, [0, 4, 8, 60, 64, 120, 200])), "variable frame rate"),
    "no duration": (with_video(lambda p: film(p, range(0, 80, 4)), "a.mkv"), "without a duration"),
    "named twice": (lambda f: asked("<image> or <image>", images=[picture(f / "a.png").name] * 2), ""),
    "in the system's turn": (
        lambda f: {"messages": [{"role": "system", "content": "<image>"}, TALK], "image": picture(f / "a.png").name}, ""
    ),
    "assistant first": (lambda _: {"messages": [TALK, {"role": "user", "content": "q"}, TALK]}, ""),
    "tools": (
        lambda _: {"messages": [{"role": "user", "content": "q"}, {"role": "function_call", "content": "f()"},
                                {"role": "observation", "content": "1"}, TALK]}, ""
    ),
    "link within the root": (with_image(lambda p: p.symlink_to(picture(p.with_name("b.png")))), ""),
    "bytes in a data URL": (
        lambda f: asked(images=["data:image/png;base64," + __import__("base64").b64encode(
            picture(f / "a.png").read_bytes()).decode()]), ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_is_unusual_is_noted_and_read(tmp_path: Path, name: str) -> None:
    make, words = ODD[name]
    dataset = opened(tmp_path, lines(tmp_path / "a.jsonl", [make(tmp_path)]))
    notes = [note for media in dataset.row(0)["media"] for note in media.get("notes", ())]
    assert any(words in note for note in notes) if words else not notes
    loads_as_told(dataset)


SOUNDS: dict[str, tuple[int, int, float]] = {
    "mono": (16000, 1, 1.0), "7.1": (48000, 8, 1.0), "8 kHz": (8000, 1, 1.0), "44.1 kHz stereo": (44100, 2, 2.5),
}  # fmt: skip


def test_sounds_of_every_shape_and_none(tmp_path: Path) -> None:
    for name, (rate, channels, seconds) in SOUNDS.items():
        sound(tmp_path / f"{name}.wav", seconds, rate, channels)
    sound(tmp_path / "none.wav", 0.0)
    sound(tmp_path / "long.wav", 9.0)
    names = [f"{name}.wav" for name in (*SOUNDS, "none", "long")]
    file = lines(tmp_path / "a.jsonl", [asked("<audio>?", audios=[name]) for name in names])
    processor = {"pretrained": audio_folder(tmp_path / "audio")}
    dataset = opened(tmp_path, file, processor=processor, problems="skip")
    assert [str(problem) for problem in dataset.problems()] == [
        f"{file}: line 5: audio none.wav has no sample of sound (0 s)",
        f"{file}: line 6: the model's processor refuses its media (a sound takes 9.0 s, the encoder hears 6)",
    ]
    assert [dataset.row(n)["media"][0]["seconds"] for n in range(4)] == pytest.approx([1, 1, 1, 2.5])
    loads_as_told(dataset, "audio", "mel")


GOOD = json.dumps({"query": "q", "response": "é"}, ensure_ascii=False)
#: A whole file's name and bytes; how many samples it has, and what is told of what is none.
FILES: dict[str, tuple[str, bytes, int, list[str]]] = {
    "byte-order mark": ("a.jsonl", b"\xef\xbb\xbf" + GOOD.encode(), 1, []),
    "CRLF": ("a.jsonl", f"{GOOD}\r\n{GOOD}\r\n".encode(), 2, []),
    "a mark and CRLF in a list": ("a.json", b"\xef\xbb\xbf[\r\n" + f"{GOOD},\r\n{GOOD}]\r\n".encode(), 2, []),
    "bad UTF-8": ("a.jsonl", f"{GOOD}\n".encode() + GOOD.encode("latin-1") + b"\n", 1, ["line 2: is not UTF-8 text"]),
    "a line of 100 MB": (
        "a.jsonl", b'{"query": "' + b"a" * 100_000_000 + f'"}}\n{GOOD}\n'.encode(), 1,
        ["line 1: is longer than 67108864 bytes"],
    ),
    "broken line": ("a.jsonl", f'{GOOD}\n{{"query": \n{GOOD}\n'.encode(), 2, ["line 2: is not JSON"]),
    "list that breaks off": ("a.json", f"[{GOOD},\n{GOOD}".encode(), 2, ["line 2: the list does not end"]),
    "nested": ("a.jsonl", (f"{GOOD}\n" + '{"messages": ' + "[" * 10**5).encode(), 1, ["line 2: is nested too deep"]),
    "not a number": ("a.jsonl", f'{GOOD}\n{{"messages": NaN}}'.encode(), 1, ["line 2: holds the number NaN"]),
    "a key twice": ("a.jsonl", f'{GOOD}\n{{"query": 1, "query": 2}}'.encode(), 1, ["line 2: holds the key 'query'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_whole_files(tmp_path: Path, name: str) -> None:
    file, content, samples, told = FILES[name]
    (tmp_path / file).write_bytes(content)
    dataset = opened(tmp_path, tmp_path / file, problems="skip")
    assert len(dataset) == samples
    assert len(dataset.problems()) == len(told)
    for problem, words in zip(dataset.problems(), told, strict=True):
        assert str(problem).startswith(f"{tmp_path / file}: {words}")
    loads_as_told(dataset)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b"", "the file has nothing in it"),
        ("a.jsonl", b" \n\n", "the file has nothing in it"),
        ("a.json", "[]".encode("utf-16"), "is UTF-16 text"),
        ("a.jsonl", bytes(1000), "is not JSON"),
        ("a.tar", b"", "the tar breaks off .empty file"),
        ("a.parquet", b"PAR1" + bytes(100), "is no Parquet file that can be read"),
        ("a.jsonl.gz", b"", "is of no form that is read"),
        ("a.tar.gz", b"", "is a compressed tar"),
    ],
)
def test_files_without_any_sample_are_refused(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        opened(tmp_path, tmp_path / name, problems="skip")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(ValueError, match=r"a\.jsonl: is no plain file"):
        opened(tmp_path, tmp_path / "a.jsonl")


def test_a_tar_that_ends_within_a_sample(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (90, 90, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "x.png")
    image = (tmp_path / "x.png").read_bytes()
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(4):
            for end, content in (("png", image), ("txt", b"a caption")):
                info = tarfile.TarInfo(f"{number}.{end}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(data[: int(len(data) * 0.6)])
    dataset = opened(tmp_path, tmp_path / "a.tar", problems="skip")
    assert len(dataset) == 2
    assert f"{tmp_path}/a.tar: sample 3: " in str(dataset.problems()[0])
    loads_as_told(dataset)


def test_parquet_with_bytes_paths_and_neither(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="install the extra parquet")
    from pyarrow import parquet

    content = picture(tmp_path / "a.png").read_bytes()
    images = [{"bytes": content, "path": None}, {"bytes": None, "path": "a.png"}, {"bytes": None, "path": "no.png"},
              {"bytes": content[:100], "path": "b.png"}, {"bytes": None, "path": None}]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist([asked(images=[own]) for own in images]), tmp_path / "a.parquet")
    dataset = opened(tmp_path, tmp_path / "a.parquet", problems="skip")
    assert len(dataset) == 2
    told = [str(problem).removeprefix(f"{tmp_path}/a.parquet: ") for problem in dataset.problems()]
    assert [own[:25] for own in told] == [
        "row 3: image no.png is no", "row 4: image b.png is cut", "row 5: gives {} for a med"
    ]  # fmt: skip
    loads_as_told(dataset)
