"""Decoded media: an image as RGB, chosen frames of a video, a sound as one channel at the rate asked for.

What is decoded has the sizes that the header gave; where it has not, that is a MediaError and no surprise later.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np

from ds_dip.data.conversations.conversation import Media
from ds_dip.data.conversations.headers import SIDEWAYS, Facts, MediaError, orientation_of, unreadable
from ds_dip.data.conversations.places import open_media
from ds_dip.files import first_line

Decoder = TypeVar("Decoder", bound=Callable[..., np.ndarray])

#: Frames that may be missing at a video's end, as a share of those its header counts; and samples of a sound.
_MISSING = 0.05

#: What Pillow calls the turn of each EXIF orientation.
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def _naming(decoder: Decoder) -> Decoder:
    """The decoder, whose errors say which medium they are of."""

    @wraps(decoder)
    def decoded(media: Media, *given: Any) -> np.ndarray:
        try:
            return decoder(media, *given)
        except MediaError as error:
            error.media = media
            raise

    return cast("Decoder", decoded)


@_naming
def image(media: Media, facts: Facts) -> np.ndarray:
    """The image as uint8 [height, width, 3], turned as its EXIF says; of an animation the first picture.

    Raises MediaError, before anything is decoded, where its header does not say what the facts do.
    """
    from PIL import Image

    if media.blank:
        return np.zeros((facts.height, facts.width, 3), np.uint8)
    with _opened(media) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes, which are checked, and of odd metadata, which are not used
        try:
            with Image.open(stream) as opened:
                orientation = orientation_of(opened)
                width, height = reversed(opened.size) if orientation in SIDEWAYS else opened.size
                if (width, height) != (facts.width, facts.height):
                    raise MediaError(
                        f"is {width} x {height}, and was {facts.width} x {facts.height} when it was indexed"
                    )
                turn = _TURNS.get(orientation)
                picture = _rgb(opened if turn is None else opened.transpose(getattr(Image.Transpose, turn)))
        except (MediaError, MemoryError):
            raise
        except Exception as error:
            raise _wrong(error) from error
    return np.asarray(picture)


def _opened(media: Media) -> BinaryIO:
    """A stream of the medium's bytes; UnreadableError."""
    try:
        return open_media(media)
    except OSError as error:
        raise unreadable(error) from error


def _wrong(error: Exception, what: str = "cannot be decoded") -> MediaError:
    """What is told of whatever a decoder raises: of broken content that may be anything."""
    # Only the system's own errors have a number, and FFmpeg's.
    if isinstance(error, OSError) and error.errno is not None and not hasattr(error, "log"):
        return unreadable(error)
    return MediaError(f"{what} ({first_line(error)})")


def _rgb(picture: Any) -> Any:
    """RGB, deep channels scaled to 8 bits and transparency laid on white."""
    from PIL import Image

    if picture.mode.startswith(("I", "F")):
        values = np.asarray(picture, dtype=np.float64)
        top = 65535.0 if picture.mode.startswith("I;16") or values.max(initial=0.0) > 255.0 else 255.0
        return Image.fromarray(np.clip(values * (255.0 / top), 0, 255).astype(np.uint8)).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layer = picture.convert("RGBA")
        ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, layer).convert("RGB")
    return picture.convert("RGB")


@_naming
def video(media: Media, indices: Sequence[int], facts: Facts) -> np.ndarray:
    """Frames at ``indices`` (ascending, by ``facts.frames``) as uint8 [frames, height, width, 3].

    The last frame stands for a few that the header counts and that do not come out. Raises MediaError for more.
    """
    import av

    if media.blank:
        return np.zeros((len(indices), facts.height, facts.width, 3), np.uint8)
    wanted = list(indices)
    found: list[np.ndarray] = []
    last: np.ndarray | None = None
    count = 0
    try:
        with _opened(media) as stream, av.open(stream, "r", metadata_errors="ignore") as container:
            track = container.streams.video[0]
            if (track.codec_context.width, track.codec_context.height) != (facts.width, facts.height):
                raise MediaError("has frames of another size than when it was indexed")
            track.thread_type = "AUTO"
            for frame in container.decode(track):
                while len(found) < len(wanted) and wanted[len(found)] == count:
                    last = frame.to_ndarray(format="rgb24")
                    found.append(last)
                count += 1
                if len(found) == len(wanted):
                    break
                if count >= facts.frames - max(1, round(facts.frames * _MISSING)):
                    last = frame.to_ndarray(format="rgb24")
    except (MediaError, MemoryError):
        raise
    except Exception as error:
        raise _wrong(error, f"cannot be decoded after {count} frames") from error
    if len(found) < len(wanted):
        if last is None or facts.frames - count > max(1, round(facts.frames * _MISSING)):
            raise MediaError(f"has {count} frames when decoded and {facts.frames} by its header")
        found += [last] * (len(wanted) - len(found))
    shape = (facts.height, facts.width, 3)
    if any(frame.shape != shape for frame in found):
        raise MediaError(f"has frames of several sizes, expected {facts.height} x {facts.width} throughout")
    return np.stack(found)


@_naming
def audio(media: Media, rate: int, facts: Facts) -> np.ndarray:
    """The sound as float32 [samples], its channels averaged, ``samples_at(facts, rate)`` of them."""
    if media.blank:
        return np.zeros(samples_at(facts, rate), np.float32)
    sound = _by_soundfile(media)
    if sound is None:
        return _fitted(_by_av(media, rate), facts, rate)
    mono, own = sound
    if own != rate:
        mono = resample(mono, own, rate)
    return _fitted(mono, facts, rate)


def samples_at(facts: Facts, rate: int) -> int:
    """Samples of a sound at another rate."""
    return max(1, round(facts.frames * rate / facts.rate))


def _by_soundfile(media: Media) -> tuple[np.ndarray, int] | None:
    import soundfile

    with _opened(media) as stream:
        try:
            samples, own = soundfile.read(stream, dtype="float32", always_2d=True)
        except (soundfile.LibsndfileError, RuntimeError, TypeError):
            return None
        except OSError as error:
            raise _wrong(error) from error
    return samples.mean(axis=1), int(own)


def _by_av(media: Media, rate: int) -> np.ndarray:
    import av

    parts = []
    try:
        with _opened(media) as stream, av.open(stream, "r", metadata_errors="ignore") as container:
            resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
            for frame in container.decode(container.streams.audio[0]):
                parts += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
            parts += [piece.to_ndarray()[0] for piece in resampler.resample(None)]
    except (MediaError, MemoryError):
        raise
    except Exception as error:
        raise _wrong(error) from error
    return np.concatenate([np.zeros(0, np.float32), *parts])


def resample(mono: np.ndarray, own: int, rate: int) -> np.ndarray:
    """The same sound at another rate, float32, by FFmpeg's resampler."""
    import av

    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(mono, np.float32)[None], format="flt", layout="mono")
    frame.sample_rate = own
    resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
    parts = [piece.to_ndarray()[0] for given in (frame, None) for piece in resampler.resample(given)]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _fitted(mono: np.ndarray, facts: Facts, rate: int) -> np.ndarray:
    """Cut or filled with silence to the length that the header gives; MediaError where that is far off."""
    wanted = samples_at(facts, rate)
    if abs(len(mono) - wanted) > max(0.1 * rate, _MISSING * wanted):
        raise MediaError(f"has {len(mono) / rate:.3f} s when decoded and {wanted / rate:.3f} s by its header")
    return np.pad(mono[:wanted], (0, max(0, wanted - len(mono)))).astype(np.float32, copy=False)
