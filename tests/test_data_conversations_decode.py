"""Decoded media have the sizes of their headers, whatever they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.headers import Facts, MediaError, facts_of
from tests.media_cases import DEMO, Image, film, picture, sound

REAL = DEMO / "mllm_demo_data"


def both(kind: Kind, path: Path) -> tuple[Media, Facts]:
    media = Media(kind, path.name, str(path))
    return media, facts_of(media)


@pytest.mark.parametrize("name", ["1.jpg", "2.jpg", "3.jpg"])
def test_real_images(name: str) -> None:
    media, facts = both("image", REAL / name)
    assert decode.image(media, facts).shape == (facts.height, facts.width, 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "P", "RGBA", "LA", "1", "YCbCr", "I", "F"])
def test_pictures_of_every_mode_become_rgb(tmp_path: Path, mode: str) -> None:
    ends = {"CMYK": "jpg", "YCbCr": "jpg", "I": "tiff", "F": "tiff"}
    media, facts = both("image", picture(tmp_path / f"a.{ends.get(mode, 'png')}", mode=mode))
    pixels = decode.image(media, facts)
    assert (pixels.shape, pixels.dtype) == ((facts.height, facts.width, 3), np.uint8)
    # The slope of brightness is there: from dark to light.
    assert pixels[0].mean() < 30
    assert pixels[-1].mean() > 225


def test_sixteen_bits_are_scaled_and_not_cut(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 1200).reshape(30, 40)
    Image.fromarray(values.astype(np.uint16)).save(tmp_path / "a.png")
    pixels = decode.image(*both("image", tmp_path / "a.png"))
    assert np.abs(pixels[..., 0] - values / 257.0).max() <= 1.0


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(tmp_path / "a.png")
    assert (decode.image(*both("image", tmp_path / "a.png")) == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_by_its_exif(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    media, facts = both("image", picture(tmp_path / "a.jpg", exif=exif, quality=95))
    pixels = decode.image(media, facts).mean(axis=2)
    assert pixels.shape == (facts.height, facts.width)
    # Dark at the top as it is stored; where that is seen is what the orientation says.
    seen = {1: (0, 0), 2: (0, 0), 3: (1, 0), 4: (1, 0), 5: (0, 1), 6: (1, 1), 7: (1, 1), 8: (0, 1)}
    last, axis = seen[orientation]
    ends = pixels.mean(axis=1 - axis)
    assert (ends[-1] < ends[0]) == bool(last)


def test_the_first_picture_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("L", (8, 9), level) for level in (10, 100, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert np.abs(decode.image(*both("image", tmp_path / "a.gif")).astype(int) - 10).max() <= 1


@pytest.mark.parametrize("name", ["1.mp4", "2.avi", "3.mp4", "4.mp4"])
def test_real_videos(name: str) -> None:
    pytest.importorskip("av", reason="install the extra video")
    media, facts = both("video", REAL / name)
    frames = decode.video(media, (0, 5, 9), facts)
    assert frames.shape == (3, facts.height, facts.width, 3)


@pytest.mark.parametrize("end", ["mp4", "mkv", "avi"])
def test_the_frames_that_were_asked_for(tmp_path: Path, end: str) -> None:
    media, facts = both("video", film(tmp_path / f"a.{end}", range(0, 80, 4)))
    frames = decode.video(media, (0, 10, 10, 19), facts).astype(float).mean(axis=(1, 2, 3))
    assert np.abs(frames - [40, 40 + 180 * 10 / 19, 40 + 180 * 10 / 19, 220]).max() < 12


def test_a_video_of_one_frame_and_of_uneven_ones(tmp_path: Path) -> None:
    media, facts = both("video", film(tmp_path / "a.mp4", [0]))
    assert decode.video(media, (0, 0), facts).shape == (2, 48, 64, 3)
    media, facts = both("video", film(tmp_path / "b.mp4", [0, 4, 8, 60, 64, 120, 200]))
    assert decode.video(media, range(7), facts).shape == (7, 48, 64, 3)


def test_a_video_that_lacks_frames_is_refused(tmp_path: Path) -> None:
    media, facts = both("video", film(tmp_path / "a.avi", range(0, 160, 4)))
    Path(str(media.path)).write_bytes(Path(str(media.path)).read_bytes()[:4000])
    with pytest.raises(MediaError, match=r"frames when decoded and 40 by its header|cannot be decoded"):
        decode.video(media, (0, 39), facts)


@pytest.mark.parametrize("name", ["1.mp3", "2.wav", "3.flac", "4.mp3"])
@pytest.mark.parametrize("rate", [16000, 24000])
def test_real_sounds(name: str, rate: int) -> None:
    pytest.importorskip("soundfile", reason="install the extra audio")
    pytest.importorskip("av", reason="install the extra video")
    media, facts = both("audio", REAL / name)
    samples = decode.audio(media, rate, facts)
    assert (len(samples), samples.dtype) == (round(facts.seconds * rate), np.float32)
    assert 0.01 < np.abs(samples).max() <= 1.5


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (44100, 2), (48000, 8)])
def test_a_tone_stays_a_tone(tmp_path: Path, rate: int, channels: int) -> None:
    media, facts = both("audio", sound(tmp_path / "a.wav", 1.0, rate, channels))
    samples = decode.audio(media, 16000, facts)
    assert len(samples) == 16000
    spectrum = np.abs(np.fft.rfft(samples))
    assert int(spectrum.argmax()) == 440
    assert np.abs(samples[1000:-1000]).max() == pytest.approx(0.5, abs=0.02)


def test_a_sound_that_only_ffmpeg_reads(tmp_path: Path) -> None:
    av = pytest.importorskip("av", reason="install the extra video")
    with av.open(str(tmp_path / "a.m4a"), "w") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        wave = (0.5 * np.sin(2 * np.pi * 440 * np.arange(16384) / 16000)).astype(np.float32)
        for start in range(0, len(wave), 1024):
            frame = av.AudioFrame.from_ndarray(wave[None, start : start + 1024], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 16000, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    media, facts = both("audio", tmp_path / "a.m4a")
    assert facts.notes == ("read by FFmpeg, its packets were counted",)
    samples = decode.audio(media, 16000, facts)
    assert len(samples) == facts.frames
    assert len(wave) <= facts.frames <= len(wave) + 2048


def test_a_cut_off_sound_is_refused(tmp_path: Path) -> None:
    media, facts = both("audio", sound(tmp_path / "a.flac", 2.0))
    Path(str(media.path)).write_bytes(Path(str(media.path)).read_bytes()[:3000])
    with pytest.raises(MediaError):
        decode.audio(media, 16000, facts)
