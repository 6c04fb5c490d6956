"""What each family of transformers makes of media: places in the text, and fields for its encoder.

Fields are those that ``ds_dip.models.from_transformers`` reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.processor import Frames
from ds_dip.files import first_line

Makers = dict[str, Callable[[], list[np.ndarray]]]


@dataclass(frozen=True, slots=True)
class Place:
    """A medium in the text and in the encoder: ``patches`` and ``merged`` of each of its instances.

    ``grid`` is the family's own.
    """

    text: str
    patches: tuple[int, ...]
    merged: tuple[int, ...]
    grid: tuple[int, ...] = ()


class Family(Protocol):
    """How a family sees media."""

    @property
    def marks(self) -> Mapping[Kind, str]:
        """What stands for a medium in the template's text, for the kinds that the model takes."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields beside ``tokens`` and ``labels``."""
        ...

    @property
    def encoders(self) -> tuple[str, ...]:
        """Modules that see media, unless it is said otherwise."""
        ...

    @property
    def frames(self) -> Frames:
        """Which frames of videos are looked at."""
        ...

    def place(self, facts: Facts, *, several: bool) -> Place:
        """A medium's place; ``several``: the sample has more than one image. ValueError where it is refused."""
        ...

    def makers(
        self,
        media: Sequence[Media],
        facts: Sequence[Facts],
        places: Callable[[], Sequence[Place]],
        tokens: Callable[[], np.ndarray],
    ) -> Makers:
        """What makes each of ``fields``."""
        ...


class TextFamily:
    """Models of text alone."""

    fields: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()

    def __init__(self, folder: str, config: Mapping[str, Any], tokenizer: Any, frames: Frames) -> None:
        self.marks: Mapping[Kind, str] = {}
        self.frames = frames

    def place(self, facts: Facts, *, several: bool) -> Place:
        """There are none."""
        raise ValueError(f"a {facts.kind} for a model of text")

    def makers(self, *_: object) -> Makers:
        """None."""
        return {}


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
        self._tokens = (config["image_token_id"], config["video_token_id"])
        names = tokenizer.convert_ids_to_tokens(list(self._tokens))
        self.marks: Mapping[Kind, str] = {"image": names[0], "video": names[1]}
        least = max(frames.least, self._steps)
        self.frames = Frames(frames.rate, least, max(frames.most, self._steps), self._steps)
        sizes = _json(folder, "video_preprocessor_config.json")
        own = _json(folder, "processor_config.json").get("video_processor", {})
        size = (sizes | own).get("size") or self._image.size
        self._video_pixels = (size["shortest_edge"], size["longest_edge"])
        self._per_second = vision.get("tokens_per_second", 2)
        self._place = lru_cache(maxsize=65536)(self._placed)

    def place(self, facts: Facts, *, several: bool) -> Place:
        """See Family."""
        steps = len(self.frames.of(facts)) // self._steps if facts.kind == "video" else 1
        return self._place(facts.kind, facts.height, facts.width, steps)

    def _placed(self, kind: Kind, height: int, width: int, steps: int) -> Place:
        rows, columns = self._grid(kind, height, width)
        patches, merged = rows * columns, rows * columns // self._merge**2
        return Place(self.marks[kind] * (steps * merged), (patches,) * steps, (merged,) * steps, (steps, rows, columns))

    def _grid(self, kind: Kind, height: int, width: int) -> tuple[int, int]:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        size = self._image.size
        least, most = (size["shortest_edge"], size["longest_edge"]) if kind == "image" else self._video_pixels
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

            found = self._image([Image.fromarray(decode.image(medium))], return_tensors="np")
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
        from transformers import Qwen2_5_VLModel

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
        library = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
        library.get_vision_position_ids = partial(Qwen2_5_VLModel.get_vision_position_ids, library)
        positions, _ = Qwen2_5_VLModel.get_rope_index(
            library,
            torch.from_numpy(tokens)[None],
            torch.from_numpy(types)[None],
            *(torch.tensor(grid) if grid else None for grid in grids.values()),
            torch.tensor(seconds) if seconds else None,
        )
        found: np.ndarray = positions[:, 0].t().contiguous().numpy()
        return found


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
        names = tokenizer.convert_ids_to_tokens([config["image_token_id"], config["video_token_id"]])
        self.marks: Mapping[Kind, str] = {"image": names[0], "video": names[1]}
        self.frames = frames
        processor = _json(folder, "processor_config.json")
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
            image = Image.fromarray(decode.image(medium))
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


class Qwen2Audio:
    """Qwen2-Audio. Field ``mel`` [rows, 3 bins]: of every row after the convolutions its two frames and the next one.

    An instance is a sound, counted in such rows. One that is longer than the encoder hears is refused, and not cut.
    """

    fields: tuple[str, ...] = ("mel",)
    encoders: tuple[str, ...] = ("audio",)

    def __init__(self, folder: str, config: Mapping[str, Any], tokenizer: Any, frames: Frames) -> None:
        from transformers import AutoFeatureExtractor

        try:
            self._extractor = AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            raise ValueError(f"{folder}: its feature extractor cannot be read ({first_line(error)})") from error
        token = config.get("audio_token_id", config.get("audio_token_index"))
        self.marks: Mapping[Kind, str] = {"audio": tokenizer.convert_ids_to_tokens(token)}
        self.frames = frames

    def place(self, facts: Facts, *, several: bool) -> Place:
        """See Family."""
        samples = decode.samples_at(facts, self._extractor.sampling_rate)
        if samples > self._extractor.n_samples:
            raise ValueError(f"a sound takes {facts.seconds:.1f} s, the encoder hears {self._extractor.chunk_length}")
        rows = (-(-samples // self._extractor.hop_length) - 1) // 2 + 1
        if rows < 2:
            raise ValueError(f"a sound takes {facts.seconds:.3f} s, too short for the encoder")
        merged = (rows - 2) // 2 + 1
        return Place(self.marks["audio"] * merged, (rows,), (merged,))

    def makers(
        self,
        media: Sequence[Media],
        facts: Sequence[Facts],
        places: Callable[[], Sequence[Place]],
        tokens: Callable[[], np.ndarray],
    ) -> Makers:
        """See Family."""
        return {
            "mel": lambda: [
                self._mel(medium, own, place.patches[0])
                for medium, own, place in zip(media, facts, places(), strict=True)
            ]
        }

    def _mel(self, medium: Media, facts: Facts, rows: int) -> np.ndarray:
        rate = self._extractor.sampling_rate
        sound = decode.audio(medium, rate, facts)
        made = self._extractor(sound, sampling_rate=rate, padding="max_length", return_tensors="np")
        bins = np.asarray(made["input_features"][0], dtype=np.float32).T
        padded = np.concatenate([bins, np.zeros_like(bins[:1])])  # what the convolutions see behind the last frame
        return np.stack([padded[2 * row : 2 * row + 3].ravel() for row in range(rows)])


TEXT: Callable[[str, Mapping[str, Any], Any, Frames], Family] = TextFamily
#: By ``model_type`` of the folder's configuration.
FAMILIES: Mapping[str, Callable[[str, Mapping[str, Any], Any, Frames], Family]] = {
    "qwen2_5_vl": QwenVL,
    "llava_onevision": LlavaOnevision,
    "qwen2_audio": Qwen2Audio,
}


def image_processor_of(folder: str) -> Any:
    """The folder's image processor, the one by Pillow; ValueError where it cannot be read."""
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"{folder}: its image processor cannot be read ({first_line(error)})") from error


def _json(folder: str, name: str) -> dict[str, Any]:
    """What a file of the folder says; nothing where it is not there."""
    path = Path(folder, name)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found
