"""What a medium is, from its header: sizes, frames and seconds without decoding it.

Images by Pillow, which reads no pixels before it is asked for them; sounds by libsndfile, and what that cannot read by
FFmpeg, as videos are. A video whose container does not count its frames has its packets counted, and a sound without a
length has its packets' durations added: both read the file and decode nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, BinaryIO

from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.places import open_media, size_of
from ds_dip.files import first_line

#: Turned by 90 or 270 degrees, mirrored or not.
SIDEWAYS = range(5, 9)
_ORIENTATION = 0x0112
_PLAIN = {"RGB", "L"}
_DEEP = ("I", "F")


class MediaError(ValueError):
    """A medium that cannot be used; the message says why, and ``media`` which, where it is known."""

    media: Media | None = None


class UnreadableError(MediaError):
    """A medium whose file cannot be read: what is wrong is with its storage, and says nothing of its content."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused from the header alone, before anything is decoded."""

    bytes: int = 1 << 32
    #: Pixels of an image, or of a frame.
    pixels: int = 1 << 27
    #: Pixels of all frames of a video, before any are left out.
    video_pixels: int = 1 << 38
    #: Seconds of a video or a sound.
    seconds: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Facts:
    """A medium by its header.

    Of an image: ``width`` and ``height`` as it is seen, turned by its EXIF orientation. Of a video also ``frames``,
    ``seconds`` and ``rate`` (frames a second). Of a sound: ``frames`` (of samples), ``rate`` (of them a second),
    ``channels``, ``seconds``. ``notes`` say what is unusual and is dealt with.
    """

    kind: Kind
    width: int = 0
    height: int = 0
    frames: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    channels: int = 0
    notes: tuple[str, ...] = field(default=())

    def brief(self) -> dict[str, Any]:
        """Its fields that say something, as JSON holds them."""
        # Not asdict(), which copies all that is in them and takes as long as reading a header.
        return {name: value for name in _FIELDS if (value := getattr(self, name))}

    @classmethod
    def of(cls, brief: Mapping[str, Any]) -> Facts:
        """The facts that ``brief`` told."""
        return cls(**{**brief, "notes": tuple(brief.get("notes", ()))})


_FIELDS = tuple(own.name for own in fields(Facts))


def facts_of(media: Media, limits: Limits | None = None) -> Facts:
    """The facts of a medium; MediaError, one sentence, where it is missing, refused or not what it should be."""
    limits = Limits() if limits is None else limits
    try:
        size = size_of(media)
        if size == 0:
            raise MediaError("is empty (0 bytes)")
        if size > limits.bytes:
            raise MediaError(
                f"is {size} bytes large, allowed are {limits.bytes}; raise the limit bytes, or leave it out"
            )
        with open_media(media) as stream:
            facts = _READERS[media.kind](stream, limits)
    except OSError as error:
        raise unreadable(error) from error
    if facts.seconds > limits.seconds:
        raise MediaError(
            f"takes {facts.seconds:.0f} s, allowed are {limits.seconds:g}; raise the limit seconds, or cut it"
        )
    return facts


def unreadable(error: OSError) -> UnreadableError:
    """What is told of a file that the system does not give."""
    if isinstance(error, FileNotFoundError):
        return UnreadableError("is not there")
    return UnreadableError(f"cannot be read ({error.strerror or first_line(error)})")


def _image(stream: BinaryIO, limits: Limits) -> Facts:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # Our own limit is what counts.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(stream)
        with image:
            width, height = image.size
            if width * height > limits.pixels:
                raise MediaError(
                    f"is {width} x {height}, {width * height} pixels, allowed are {limits.pixels}; raise the limit "
                    "pixels, or make it smaller"
                )
            notes = _image_notes(image)
            orientation = orientation_of(image)
            _check_end(stream, image)
    except UnidentifiedImageError as error:
        raise MediaError("is no image that Pillow knows") from error
    except Image.DecompressionBombError as error:
        raise MediaError(f"is too large to decode ({first_line(error)})") from error
    except (MediaError, MemoryError):
        raise
    except Exception as error:
        # Pillow's decoders raise whatever they stumble over in headers that make no sense; the system has a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise MediaError(f"has a broken header ({first_line(error)})") from error
    if orientation in SIDEWAYS:
        width, height = height, width
    if orientation > 1:
        notes = (*notes, "turned by EXIF")
    return Facts("image", width, height, notes=notes)


def orientation_of(image: Any) -> int:
    """How an opened image is to be turned, by its EXIF orientation: 1 for not at all; no pixels are read."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # Pillow would decode the image to look behind its pixels
    found = image.getexif().get(_ORIENTATION, 1)
    return found if found in range(1, 9) else 1


def _image_notes(image: Any) -> tuple[str, ...]:
    notes = []
    if image.mode not in _PLAIN:
        deep = image.mode.startswith(_DEEP)
        notes.append(f"{'16 bits or more a channel' if deep else 'palette' if image.mode == 'P' else image.mode}")
    if getattr(image, "n_frames", 1) > 1 if image.format in ("GIF", "PNG", "WEBP", "TIFF", "MPO") else False:
        notes.append("animated or of several pages, the first one counts")
    if min(image.size) < 8:
        notes.append("less than 8 pixels on a side")
    if max(image.size) > 200 * min(image.size):
        notes.append("more than 200 times as long as wide")
    return tuple(notes)


#: The bytes that end a file, and how many at most may follow them in files that are used all the same.
_ENDS: Mapping[str, tuple[bytes, int]] = {"JPEG": (b"\xff\xd9", 4096), "PNG": (b"IEND", 4096)}


def _check_end(stream: BinaryIO, image: Any) -> None:
    """MediaError where the file was cut off: its end marker is missing, and decoding it fails."""
    if image.format not in _ENDS:
        return
    marker, tail = _ENDS[image.format]
    at = stream.tell()
    length = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, length - tail))
    found = marker in stream.read()
    stream.seek(at)
    if not found:
        try:
            image.load()
        except OSError as error:
            raise MediaError(f"is cut off ({first_line(error)})") from error


def _video(stream: BinaryIO, limits: Limits) -> Facts:
    import av

    try:
        with av.open(stream, "r", metadata_errors="ignore") as container:
            if not container.streams.video:
                raise MediaError("has no video in it")
            video = container.streams.video[0]
            width, height = video.codec_context.width, video.codec_context.height
            rate = video.average_rate or video.guessed_rate or Fraction(0)
            notes = []
            frames, seconds = video.frames, 0.0
            if video.duration is not None and video.time_base is not None:
                seconds = float(video.duration * video.time_base)
            elif container.duration is not None:
                seconds = container.duration / av.time_base
            if not frames or not seconds:
                notes.append("without a duration or a count of frames, its packets were counted")
                frames, last = _packets(container, video)
                seconds = seconds or last or (float(frames / rate) if rate else 0.0)
            base = video.base_rate
            if rate and base and abs(float(base) - float(rate)) > 0.02 * float(rate):
                notes.append("variable frame rate")
    except (av.FFmpegError, ValueError, EOFError) as error:
        if isinstance(error, MediaError):
            raise
        raise MediaError(f"is no video that can be read ({first_line(error)})") from error
    if not frames:
        raise MediaError("has no frame")
    if not width or not height:
        raise MediaError("does not say how large its frames are")
    for what, count, limit in (
        ("a frame", width * height, limits.pixels),
        ("all its frames", width * height * frames, limits.video_pixels),
    ):
        if count > limit:
            raise MediaError(f"has {count} pixels in {what}, allowed are {limit}; raise the limit, or make it smaller")
    if frames == 1:
        notes.append("one frame")
    return Facts("video", width, height, frames, seconds, frames / seconds if seconds else 0.0, notes=tuple(notes))


def _packets(container: Any, stream: Any) -> tuple[int, float]:
    """How many packets a stream has, and the end of the last one in seconds."""
    count, first, last = 0, None, 0
    for packet in container.demux(stream):
        if packet.size == 0 or packet.pts is None:
            continue
        count += 1
        first = packet.pts if first is None else min(first, packet.pts)
        last = max(last, packet.pts + (packet.duration or 0))
    return count, float((last - (first or 0)) * stream.time_base) if count and stream.time_base else 0.0


def _audio(stream: BinaryIO, _: Limits) -> Facts:
    import soundfile

    try:
        with soundfile.SoundFile(stream) as sound:
            frames, rate, channels = sound.frames, sound.samplerate, sound.channels
        notes: list[str] = []
    except (soundfile.LibsndfileError, RuntimeError, TypeError):
        stream.seek(0)
        frames, rate, channels = _audio_packets(stream)
        notes = ["read by FFmpeg, its packets were counted"]
    if frames <= 0:
        raise MediaError("has no sample of sound (0 s)")
    if channels > 1:
        notes.append(f"{channels} channels, mixed to one")
    return Facts("audio", frames=frames, seconds=frames / rate, rate=float(rate), channels=channels, notes=tuple(notes))


def _audio_packets(stream: BinaryIO) -> tuple[int, int, int]:
    """(frames, rate, channels) of a sound that only FFmpeg reads."""
    import av

    try:
        with av.open(stream, "r", metadata_errors="ignore") as container:
            if not container.streams.audio:
                raise MediaError("has no sound in it")
            sound = container.streams.audio[0]
            rate, channels = sound.codec_context.sample_rate, sound.codec_context.channels
            _, seconds = _packets(container, sound)
    except (av.FFmpegError, ValueError, EOFError) as error:
        if isinstance(error, MediaError):
            raise
        raise MediaError(f"is no sound that can be read ({first_line(error)})") from error
    if not rate:
        raise MediaError("does not say its sample rate")
    return round(seconds * rate), rate, channels


_READERS: Mapping[Kind, Callable[[BinaryIO, Limits], Facts]] = {"image": _image, "video": _video, "audio": _audio}
