"""What media are, without decoding them: real files, and every odd kind of picture, video and sound."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.headers import Facts, Limits, MediaError, facts_of
from tests.media_cases import DEMO, Image, film, picture, sound

VIDEOS = {"1.mp4": (640, 360, 243, 9.72), "2.avi": (320, 240, 270, 9.02507), "3.mp4": (640, 360, 146, 6.08833),
          "4.mp4": (224, 224, 150, 5.0)}  # fmt: skip
SOUNDS = {"1.mp3": (193536, 48000, 2), "2.wav": (46421, 16000, 1), "3.flac": (93680, 16000, 1),
          "4.mp3": (220500, 44100, 2)}  # fmt: skip
IMAGES = {"1.jpg": (300, 168), "2.jpg": (300, 199), "3.jpg": (300, 166)}


def facts(kind: Kind, path: Path, limits: Limits | None = None) -> Facts:
    return facts_of(Media(kind, path.name, str(path)), limits)


def refusal(kind: Kind, path: Path, limits: Limits | None = None) -> str:
    with pytest.raises(MediaError) as refused:
        facts(kind, path, limits)
    return str(refused.value)


@pytest.mark.parametrize("name", IMAGES)
def test_real_images(name: str) -> None:
    found = facts("image", DEMO / "mllm_demo_data" / name)
    assert (found.width, found.height, found.notes) == (*IMAGES[name], ())


@pytest.mark.parametrize("name", VIDEOS)
def test_real_videos(name: str) -> None:
    pytest.importorskip("av", reason="install the extra video")
    found = facts("video", DEMO / "mllm_demo_data" / name)
    width, height, frames, seconds = VIDEOS[name]
    assert (found.width, found.height, found.frames, found.notes) == (width, height, frames, ())
    assert found.seconds == pytest.approx(seconds, abs=1e-4)


@pytest.mark.parametrize("name", SOUNDS)
def test_real_sounds(name: str) -> None:
    pytest.importorskip("soundfile", reason="install the extra audio")
    found = facts("audio", DEMO / "mllm_demo_data" / name)
    assert (found.frames, found.rate, found.channels) == SOUNDS[name]
    assert found.seconds == found.frames / found.rate


@pytest.mark.parametrize(
    ("mode", "end", "note"),
    [
        ("RGB", "png", None),
        ("L", "jpg", None),
        ("CMYK", "jpg", "CMYK"),
        ("P", "png", "palette"),
        ("RGBA", "png", "RGBA"),
        ("1", "bmp", "1"),
        ("I;16", "png", "16 bits or more a channel"),
    ],
)
def test_pictures_of_every_mode(tmp_path: Path, mode: str, end: str, note: str | None) -> None:
    path = tmp_path / f"a.{end}"
    if mode == "I;16":
        Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50).save(path)
    else:
        picture(path, mode=mode)
    found = facts("image", path)
    assert (found.width, found.height) == (40, 30)
    assert found.notes == (() if note is None else (note,))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_as_large_as_it_is_seen(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = facts("image", picture(tmp_path / "a.jpg", exif=exif))
    assert (found.width, found.height) == ((30, 40) if orientation > 4 else (40, 30))
    assert found.notes == (("turned by EXIF",) if orientation > 1 else ())


def test_odd_shapes_and_animations_are_noted(tmp_path: Path) -> None:
    assert facts("image", picture(tmp_path / "a.png", 1, 1)).notes == ("less than 8 pixels on a side",)
    assert facts("image", picture(tmp_path / "b.png", 20000, 50)).notes == ("more than 200 times as long as wide",)
    frames = [Image.new("L", (8, 9), level) for level in (0, 100, 200)]
    frames[0].save(tmp_path / "c.gif", save_all=True, append_images=frames[1:])
    assert "animated or of several pages, the first one counts" in facts("image", tmp_path / "c.gif").notes


def bomb(path: Path, width: int, height: int) -> Path:
    """A PNG of a few bytes that says it is huge."""
    header = struct.pack(">II5B", width, height, 8, 2, 0, 0, 0)
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    return path


def test_bombs_are_refused_by_their_header(tmp_path: Path) -> None:
    assert "is 12000 x 12000, 144000000 pixels, allowed are 134217728" in refusal(
        "image", bomb(tmp_path / "a.png", 12000, 12000)
    )
    assert "is too large to decode" in refusal("image", bomb(tmp_path / "a.png", 60000, 60000))
    assert "allowed are 100" in refusal("image", picture(tmp_path / "b.png"), Limits(pixels=100))
    assert "allowed are 10; raise the limit bytes" in refusal("image", tmp_path / "b.png", Limits(bytes=10))
    long = film(tmp_path / "c.mp4", range(0, 100, 4))
    assert "pixels in all its frames, allowed are 1000" in refusal("video", long, Limits(video_pixels=1000))
    assert "pixels in a frame" in refusal("video", long, Limits(pixels=1000))
    assert "takes 1 s, allowed are 0.5" in refusal("video", long, Limits(seconds=0.5))
    assert "allowed are 0.1" in refusal("audio", sound(tmp_path / "d.wav"), Limits(seconds=0.1))


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_what_is_none_is_refused(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "a"
    assert refusal(kind, path) == "is not there"
    path.write_bytes(b"")
    assert refusal(kind, path) == "is empty (0 bytes)"
    path.write_bytes(b"nonsense" * 100)
    assert refusal(kind, path).startswith("is no ")
    path.unlink()
    path.mkdir()
    assert refusal(kind, path).startswith("cannot be read (Is a directory")


@pytest.mark.parametrize("end", ["jpg", "png"])
def test_a_picture_that_was_cut_off_is_found_by_its_end(tmp_path: Path, end: str) -> None:
    path = picture(tmp_path / f"a.{end}", 400, 300)
    data = path.read_bytes()
    path.write_bytes(data + b"trailing bytes do no harm")
    assert facts("image", path).width == 400
    path.write_bytes(data[: len(data) // 2])
    assert refusal("image", path).startswith("is cut off (")
    path.write_bytes(data[:30])
    assert refusal("image", path)


def test_a_cut_off_video_is_refused(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", range(0, 100, 4))
    path.write_bytes(path.read_bytes()[:1000])
    assert refusal("video", path).startswith("is no video that can be read")


def test_videos_without_a_length_have_their_packets_counted(tmp_path: Path) -> None:
    found = facts("video", film(tmp_path / "a.mkv", range(0, 80, 4)))
    assert (found.frames, found.notes) == (20, ("without a duration or a count of frames, its packets were counted",))
    assert found.seconds == pytest.approx(0.8, abs=0.05)
    stream = film(tmp_path / "a.m4v", range(0, 80, 4))  # bare MPEG-4: no container
    assert facts("video", stream).frames == 20


def test_one_frame_and_uneven_frames(tmp_path: Path) -> None:
    one = facts("video", film(tmp_path / "a.mp4", [0]))
    assert one.frames == 1
    assert "one frame" in one.notes
    uneven = facts("video", film(tmp_path / "b.mp4", [0, 4, 8, 60, 64, 120, 200]))
    assert uneven.frames == 7
    assert "variable frame rate" in uneven.notes


def test_a_video_without_pictures_and_a_sound_without_sound(tmp_path: Path) -> None:
    assert refusal("video", sound(tmp_path / "a.mp3", channels=2)) == "has no video in it"
    assert refusal("audio", film(tmp_path / "b.mp4", range(0, 40, 4))) == "has no sound in it"
    assert refusal("audio", sound(tmp_path / "c.wav", 0.0)) == "has no sample of sound (0 s)"


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44100, 2), (48000, 8)])
def test_sounds_of_other_rates_and_channels(tmp_path: Path, rate: int, channels: int) -> None:
    found = facts("audio", sound(tmp_path / "a.wav", 0.25, rate, channels))
    assert (found.frames, found.rate, found.channels) == (rate // 4, rate, channels)
    assert found.notes == ((f"{channels} channels, mixed to one",) if channels > 1 else ())


def test_a_span_of_a_file_is_a_medium(tmp_path: Path) -> None:
    data = picture(tmp_path / "a.png").read_bytes()
    (tmp_path / "b.tar").write_bytes(b"before" + data + b"after")
    assert facts_of(Media("image", "a.png", str(tmp_path / "b.tar"), (6, len(data)))).width == 40
    assert facts_of(Media("image", "a.png", content=data)).height == 30
