"""How fast conversations are indexed: headers alone, and an index cold, gone on with, refreshed and opened."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ds_dip.data.conversations import Conversations
from ds_dip.data.conversations.conversation import Media
from ds_dip.data.conversations.headers import facts_of

#: Pictures of a sample, again and again.
_IMAGES = (1, 0, 2, 1)
_SEEDS = 16


def make_media(folder: Path, samples: int, side: int) -> tuple[Path, int]:
    """A file of records with JPEGs of ``side`` x ``side`` pixels in a folder; the file, and how many pictures."""
    from PIL import Image

    encoded = []
    for seed in range(_SEEDS):
        coarse = np.random.default_rng(seed).integers(0, 255, (12, 12, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=85)
        encoded.append(stream.getvalue())
    path, number = folder / "records.jsonl", 0
    with open(path, "w", encoding="utf-8") as records:
        for sample in range(samples):
            names = []
            for _ in range(_IMAGES[sample % len(_IMAGES)]):
                names.append(f"{number}.jpg")
                (folder / names[-1]).write_bytes(encoded[number % _SEEDS])
                number += 1
            said = [
                {"role": "user", "content": "<image>" * len(names) + f"what is shown in sample {sample}?"},
                {"role": "assistant", "content": f"colours, in {len(names)} pictures"},
            ]
            records.write(json.dumps({"messages": said, "images": names}) + "\n")
    return path, number


class _Stopped(Exception):  # noqa: N818  # it is no error
    pass


def measure(path: Path, images: int, processor: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Seconds of each, and images and records a second; the file of records grows by one."""

    def opened(progress: Any = None) -> Conversations:
        return Conversations(progress, files=str(path), processor=dict(processor), index=str(folder / "index"))

    def timed(run: Callable[[], Any]) -> float:
        began = time.monotonic()
        run()
        return time.monotonic() - began

    (warm_up := folder / "first").mkdir()
    first, _ = make_media(warm_up, 1, 32)  # imports
    Conversations(files=str(first), processor=dict(processor))
    media = [Media("image", own.name, str(own)) for own in sorted(path.parent.glob("*.jpg"))]
    headers = timed(lambda: [facts_of(own) for own in media])
    cold = timed(opened)
    records = len(opened())
    shutil.rmtree(folder / "index")

    def stop(_: Path, number: int, *__: int) -> None:
        if number >= records // 2:
            raise _Stopped

    with suppress(_Stopped):
        opened(stop)
    resumed, warm = timed(opened), timed(opened)
    lines = path.read_text(encoding="utf-8")
    path.write_text(lines + lines.splitlines()[0] + "\n", encoding="utf-8")
    refreshed = timed(opened)
    return {
        "images": images,
        "records": records,
        "headers_per_s_one_thread": images / headers,
        "cold_s": cold,
        "images_per_s": images / cold,
        "records_per_s": records / cold,
        "resumed_from_half_s": resumed,
        "refreshed_records_s": refreshed,
        "opened_s": warm,
    }
