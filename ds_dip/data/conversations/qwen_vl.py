"""Conversations for Qwen2.5-VL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.families import Makers, Place, image_processor_of, stored, token_of
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.processor import Frames

#: Of the library: the tokens that a model's context is taken to have, and the share of them that a video may take.
_VIDEO_TOKENS, _SHARE = 128000, 0.9


@dataclass(frozen=True, slots=True)
class QwenFrames(Frames):
    """The frames that Qwen's own processor takes for ``fps``, ``min_frames`` and ``max_frames``.

    They come in groups of ``step``, of which the last frame fills up the last one.
    """

    step: int = 2

    @classmethod
    def of_folder(cls, asked: Frames, own: Mapping[str, Any], step: int) -> QwenFrames:
        """What was set, else what the folder's video processor has, else the library's (but of ``most`` ours)."""
        rate, least, most = (
            getattr(asked, name) if name in asked.said else own.get(stored) or default
            for name, stored, default in (("rate", "fps", 2.0), ("least", "min_frames", 4), ("most", "max_frames", 64))
        )
        return cls(float(rate), int(least), int(most), step=step)

    def of(self, facts: Facts) -> tuple[int, ...]:
        """See Frames."""
        import torch

        most = min(self.most, facts.frames) // self.step * self.step
        seconds = facts.frames / facts.rate if facts.rate else facts.seconds
        wanted = int(min(max(seconds * self.rate, self.least), most)) // self.step * self.step
        # As the library, whose steps are of 32 bits: which frame is next may hang on the last of them.
        found = torch.arange(0, facts.frames, facts.frames / wanted).int().tolist() if wanted else range(facts.frames)
        frames = [min(int(index), facts.frames - 1) for index in found]
        return (*frames, *frames[-1:] * (-len(frames) % self.step))


class QwenVL:
    """Qwen2.5-VL. Fields ``pixels`` [patches, numbers], ``places`` [patches, 2] and ``positions`` [tokens, 3].

    An instance is an image or one step in time of a video. Frames come in pairs, a step each.
    """

    fields: tuple[str, ...] = ("pixels", "places", "positions")
    encoders: tuple[str, ...] = ("vision",)

    def __init__(self, folder: str, config: Mapping[str, Any], tokenizer: Any, frames: Frames) -> None:
        vision = config["vision_config"]
        self._image = image_processor_of(folder)
        self._config = config
        self._patch, self._steps = self._image.patch_size, self._image.temporal_patch_size
        self._merge = self._image.merge_size
        self._tokens = (token_of(config, "image"), token_of(config, "video"))
        names = tokenizer.convert_ids_to_tokens(list(self._tokens))
        self.marks: Mapping[Kind, str] = {"image": names[0], "video": names[1]}
        video = stored(folder, "video_preprocessor_config.json")
        video |= stored(folder, "processor_config.json").get("video_processor", {})
        self.frames = QwenFrames.of_folder(frames, video, self._steps)
        size = video.get("size") or self._image.size
        self._video_pixels = (size["shortest_edge"], size["longest_edge"])
        # What all frames of a video may have in pixels; without the switch the library has no such bound either.
        tokens = video.get("max_video_tokens", _VIDEO_TOKENS) if video.get("cap_pixels_per_frame") else None
        self._all_pixels = None if tokens is None else int(tokens * (self._patch * self._merge) ** 2 * _SHARE)
        self._per_second = vision["tokens_per_second"]
        self._place = lru_cache(maxsize=65536)(self._placed)

    def place(self, facts: Facts, *, several: bool) -> Place:
        """See Family."""
        if facts.kind == "image":
            return self._place(facts.kind, facts.height, facts.width, 1, 0)
        frames = self.frames.of(facts)
        shown = min(len(frames), facts.frames)
        return self._place(facts.kind, facts.height, facts.width, len(frames) // self._steps, shown)

    def _placed(self, kind: Kind, height: int, width: int, steps: int, frames: int) -> Place:
        rows, columns = self._grid(kind, height, width, frames)
        patches, merged = rows * columns, rows * columns // self._merge**2
        return Place(self.marks[kind] * (steps * merged), (patches,) * steps, (merged,) * steps, (steps, rows, columns))

    def _grid(self, kind: Kind, height: int, width: int, frames: int) -> tuple[int, int]:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        size = self._image.size
        least, most = (size["shortest_edge"], size["longest_edge"]) if kind == "image" else self._video_pixels
        if kind == "video" and self._all_pixels is not None:
            most = max(min(most, self._all_pixels * self._steps // frames), int(least * 1.05))
        tall, wide = smart_resize(height, width, self._patch * self._merge, least, most)
        return tall // self._patch, wide // self._patch

    def makers(
        self,
        media: Sequence[Media],
        facts: Sequence[Facts],
        places: Callable[[], Sequence[Place]],
        tokens: Callable[[], np.ndarray],
    ) -> Makers:
        """See Family."""
        return {
            "pixels": lambda: [
                rows
                for medium, own, place in zip(media, facts, places(), strict=True)
                for rows in self._pixels(medium, own, place)
            ],
            "places": lambda: [self._rows(*place.grid[1:]) for place in places() for _ in range(place.grid[0])],
            "positions": lambda: [self._positions(media, facts, places(), tokens())],
        }

    def _pixels(self, medium: Media, facts: Facts, place: Place) -> list[np.ndarray]:
        if medium.kind == "image":
            from PIL import Image

            found = self._image([Image.fromarray(decode.image(medium, facts))], return_tensors="np")
            return [np.asarray(found["pixel_values"], dtype=np.float32)]
        return self._video(decode.video(medium, self.frames.of(facts), facts), *place.grid)

    def _video(self, frames: np.ndarray, steps: int, rows: int, columns: int) -> list[np.ndarray]:
        """Frames [n, height, width, 3] as the library's video processor cuts them, a step in time each."""
        from PIL import Image

        wide, tall = columns * self._patch, rows * self._patch
        resized = [Image.fromarray(frame).resize((wide, tall), self._image.resample) for frame in frames]
        values = np.stack([np.asarray(frame, dtype=np.float32) for frame in resized]) * self._image.rescale_factor
        values = (values - np.float32(self._image.image_mean)) / np.float32(self._image.image_std)
        merge, patch = self._merge, self._patch
        cut = values.transpose(0, 3, 1, 2).reshape(
            steps, self._steps, 3, rows // merge, merge, patch, columns // merge, merge, patch
        )
        ordered = cut.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(steps, rows * columns, -1)
        return list(np.ascontiguousarray(ordered, dtype=np.float32))

    def _rows(self, rows: int, columns: int) -> np.ndarray:
        """Row and column of every patch, squares of those that merge one after another."""
        merge = self._merge
        cut = np.indices((rows, columns)).reshape(2, rows // merge, merge, columns // merge, merge)
        places: np.ndarray = cut.transpose(1, 3, 2, 4, 0).reshape(-1, 2)
        return places

    def _positions(
        self, media: Sequence[Media], facts: Sequence[Facts], places: Sequence[Place], tokens: np.ndarray
    ) -> np.ndarray:
        """Positions in time, height and width [tokens, 3], by the library."""
        import torch

        from ds_dip.models.hf.qwen2_5_vl import positions_of

        types = np.select([tokens == token for token in self._tokens], [1, 2], 0)
        grids: dict[str, list[tuple[int, ...]]] = {"image": [], "video": []}
        for medium, place in zip(media, places, strict=True):
            grids[medium.kind].append(place.grid)
        seconds = [
            self._steps * own.seconds / len(self.frames.of(own)) if own.seconds else 1.0
            for medium, own in zip(media, facts, strict=True)
            if medium.kind == "video"
        ]
        vision = SimpleNamespace(spatial_merge_size=self._merge, tokens_per_second=self._per_second)
        positions = positions_of(
            SimpleNamespace(vision_config=vision),
            torch.from_numpy(tokens),
            torch.from_numpy(types),
            torch.tensor(grids["image"]) if grids["image"] else None,
            torch.tensor(grids["video"]) if grids["video"] else None,
            torch.tensor(seconds) if seconds else None,
        )
        found: np.ndarray = positions.numpy()
        return found
