"""Media made for tests: pictures, videos and sounds of any shape, and conversations that name them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="install the extra hf")

DEMO = Path(__file__).parent / "data" / "mllm_demo"
TINY = {
    "format": "ds-dip/model",
    "version": 1,
    "name": "tiny",
    "modules": [
        {"name": "vision", "kind": "image_encoder", "layers": 1, "hidden": 16, "heads": 2, "kv_heads": 2, "ffn": 24,
         "gated": True, "patch": 14, "channels": 3, "image": 112, "merge": 4},
        {"name": "language", "kind": "language_model", "layers": 1, "hidden": 16, "heads": 2, "kv_heads": 2, "ffn": 24,
         "gated": True, "vocabulary": 256, "placeholders": {"vision": 4}, "rope_theta": 1000},
    ],
    "edges": [["vision", "language"]],
}  # fmt: skip


def tiny_model(folder: Path) -> str:
    """The path of a model's file that conversations are made for: images of at most 64 patches, merged by 4."""
    path = folder / "model.json"
    path.write_text(json.dumps(TINY))
    return str(path)


def picture(path: Path, width: int = 40, height: int = 30, mode: str = "RGB", **options: Any) -> Path:
    """An image with a slope of brightness."""
    slope = np.linspace(0, 255, width * height).reshape(height, width)
    Image.fromarray(slope.astype(np.uint8)).convert(mode).save(path, **options)
    return path


def film(path: Path, times: Sequence[int], width: int = 64, height: int = 48, codec: str = "mpeg4") -> Path:
    """A video with a frame at each of ``times`` (in 1/100 s), brighter and brighter."""
    av = pytest.importorskip("av", reason="install the extra video")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 100)
        for number, at in enumerate(times):
            level = 40 + 180 * number // max(1, len(times) - 1)
            frame = av.VideoFrame.from_ndarray(np.full((height, width, 3), level, np.uint8), format="rgb24")
            frame.pts, frame.time_base = at, Fraction(1, 100)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def sound(path: Path, seconds: float = 0.5, rate: int = 16000, channels: int = 1, **options: Any) -> Path:
    """A tone of 440 Hz."""
    soundfile = pytest.importorskip("soundfile", reason="install the extra audio")
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate)
    soundfile.write(path, np.repeat(wave[:, None], channels, axis=1), rate, **options)
    return path


def asked(text: str = "<image>what?", answer: str = "this", **media: Any) -> dict[str, Any]:
    """A record of one question and its answer."""
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **media}


def lines(path: Path, records: Sequence[Any]) -> Path:
    """A file of JSON Lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
