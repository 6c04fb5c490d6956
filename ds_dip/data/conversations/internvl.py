"""Conversations for InternVL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.families import Makers, Place, image_processor_of, stored
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.processor import Frames


class InternVL:
    """InternVL. Field ``pixels`` [rows, channels patch²]: of every tile zeros for its class token, then its patches.

    An instance is an image with all its tiles, or a video with its frames, a tile each.
    """

    fields: tuple[str, ...] = ("pixels",)
    encoders: tuple[str, ...] = ("vision",)

    def __init__(self, folder: str, config: Mapping[str, Any], tokenizer: Any, frames: Frames) -> None:
        self._image = image_processor_of(folder)
        patch = config["vision_config"]["patch_size"]
        self._patch = patch if isinstance(patch, int) else patch[0]
        self._edge = int(self._image.size["height"])
        self._side = self._edge // self._patch
        shrunk = round((self._side * config["downsample_ratio"]) ** 2)
        self._tokens = stored(folder, "processor_config.json").get("image_seq_length") or shrunk
        try:
            self._ends = tokenizer.start_image_token, tokenizer.end_image_token
            self._context = tokenizer.context_image_token
            self.marks: Mapping[Kind, str] = {"image": self._context, "video": tokenizer.video_token}
        except AttributeError as error:
            raise ValueError(f"{folder}: its tokenizer does not name the tokens of images ({error})") from error
        self.frames = frames
        self._count = lru_cache(maxsize=65536)(self._tiles_of)

    def place(self, facts: Facts, *, several: bool) -> Place:
        """See Family."""
        start, end = self._ends
        if facts.kind == "image":
            tiles = self._count(facts.height, facts.width)
            text = f"{start}{self._context * (tiles * self._tokens)}{end}"
        else:
            tiles = len(self.frames.of(facts))
            one = f"{start}{self._context * self._tokens}{end}"
            text = "\n".join(f"Frame{number + 1}: {one}" for number in range(tiles))
        return Place(text, (tiles * (self._side**2 + 1),), (tiles * self._tokens,))

    def _tiles_of(self, height: int, width: int) -> int:
        return int(self._image.get_number_of_image_patches(height, width, {"crop_to_patches": True}))

    def makers(
        self,
        media: Sequence[Media],
        facts: Sequence[Facts],
        places: Callable[[], Sequence[Place]],
        tokens: Callable[[], np.ndarray],
    ) -> Makers:
        """See Family."""
        return {"pixels": lambda: [self._pixels(medium, own) for medium, own in zip(media, facts, strict=True)]}

    def _pixels(self, medium: Media, facts: Facts) -> np.ndarray:
        from PIL import Image

        if medium.kind == "image":
            pictures, cropped = decode.image(medium, facts)[None], True
        else:
            pictures, cropped = decode.video(medium, self.frames.of(facts), facts), False
        images = [Image.fromarray(picture) for picture in pictures]
        tiles = np.stack(self._image(images, crop_to_patches=cropped)["pixel_values"])
        side, patch, channels = self._side, self._patch, tiles.shape[1]
        cut = tiles.reshape(-1, channels, side, patch, side, patch).transpose(0, 2, 4, 1, 3, 5)
        rows = cut.reshape(len(tiles), side**2, channels * patch**2).astype(np.float32)
        return np.pad(rows, ((0, 0), (1, 0), (0, 0))).reshape(-1, rows.shape[2])
