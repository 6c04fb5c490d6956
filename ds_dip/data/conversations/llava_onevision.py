"""Conversations for LLaVA-OneVision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from math import ceil
from types import SimpleNamespace
from typing import Any

import numpy as np

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.families import Makers, Place, image_processor_of, stored, token_of
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.processor import Frames


class LlavaOnevision:
    """LLaVA-OneVision. Fields ``pixels`` [patches, channels patch²] and ``layout`` [patches, 3].

    An instance is an image with all its tiles (of a sample with several images one tile each), or a video with all its
    frames. A layout is 0 for an image and 1 for a video, its height and its width, the same in all rows.
    """

    fields: tuple[str, ...] = ("pixels", "layout")
    encoders: tuple[str, ...] = ("vision",)

    def __init__(self, folder: str, config: Mapping[str, Any], tokenizer: Any, frames: Frames) -> None:
        vision = config["vision_config"]
        self._image = image_processor_of(folder)
        self._patch, self._edge = vision["patch_size"], vision["image_size"]
        self._side = self._edge // self._patch
        names = tokenizer.convert_ids_to_tokens([token_of(config, "image"), token_of(config, "video")])
        self.marks: Mapping[Kind, str] = {"image": names[0], "video": names[1]}
        self.frames = frames
        processor = stored(folder, "processor_config.json")
        self._library = self._processor(processor, config)
        self._place = lru_cache(maxsize=65536)(self._placed)

    def _processor(self, stored: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        """What the library's functions see of its processor."""
        from transformers import LlavaOnevisionProcessor

        library = SimpleNamespace(
            image_processor=self._image,
            num_image_tokens=stored.get("num_image_tokens") or self._side**2,
            vision_aspect_ratio=stored.get("vision_aspect_ratio") or config.get("vision_aspect_ratio", "anyres_max_9"),
        )
        for name in ("_get_unpadded_features", "_get_number_of_features"):
            setattr(library, name, partial(getattr(LlavaOnevisionProcessor, name), library))
        return library

    def place(self, facts: Facts, *, several: bool) -> Place:
        """See Family."""
        frames = len(self.frames.of(facts)) if facts.kind == "video" else 0
        return self._place(facts.height, facts.width, frames, several)

    def _placed(self, height: int, width: int, frames: int, several: bool) -> Place:
        from transformers.image_processing_utils import select_best_resolution

        if frames:
            merged, tiles = frames * ceil(self._side / 2) ** 2 + 1, frames
        elif several:
            merged, tiles = self._side**2 + 1, 1
        else:
            merged = int(self._library._get_number_of_features(height, width, self._edge, self._edge))
            tall, wide = select_best_resolution((height, width), self._image.image_grid_pinpoints)
            tiles = 1 + (tall // self._edge) * (wide // self._edge)
        mark = self.marks["video" if frames else "image"]
        return Place(mark * merged, (tiles * self._side**2,), (merged,), (int(frames > 0), height, width))

    def makers(
        self,
        media: Sequence[Media],
        facts: Sequence[Facts],
        places: Callable[[], Sequence[Place]],
        tokens: Callable[[], np.ndarray],
    ) -> Makers:
        """See Family."""
        several = sum(medium.kind == "image" for medium in media) > 1
        return {
            "pixels": lambda: [
                self._pixels(medium, own, several=several) for medium, own in zip(media, facts, strict=True)
            ],
            "layout": lambda: [
                np.tile(np.array(place.grid, dtype=np.int64), (place.patches[0], 1)) for place in places()
            ],
        }

    def _pixels(self, medium: Media, facts: Facts, *, several: bool) -> np.ndarray:
        from PIL import Image

        if medium.kind == "image":
            image = Image.fromarray(decode.image(medium, facts))
            # Two images, of which the first one counts, have the library make one tile of each.
            return self._cut(self._tiles([image, image] if several else [image])[0])
        frames = decode.video(medium, self.frames.of(facts), facts)
        edge = (self._edge, self._edge)
        images = [Image.fromarray(frame).resize(edge, self._image.resample) for frame in frames]
        return self._cut(np.concatenate(self._tiles([*images, images[0]])[:-1]))

    def _tiles(self, images: Sequence[Any]) -> list[np.ndarray]:
        """Tiles [tiles, channels, edge, edge] of every image of a sample."""
        return [np.asarray(tiles) for tiles in self._image([list(images)])["pixel_values"]]

    def _cut(self, tiles: np.ndarray) -> np.ndarray:
        """Tiles as rows of patches, each tile's row by row."""
        side, patch, channels = self._side, self._patch, tiles.shape[1]
        cut = tiles.reshape(-1, channels, side, patch, side, patch).transpose(0, 2, 4, 1, 3, 5)
        return np.ascontiguousarray(cut, dtype=np.float32).reshape(-1, channels * patch**2)
