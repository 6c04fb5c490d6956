"""InternVL's pictures and Qwen2-Audio's sounds: places in the text, fields for their encoders (see ``families``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.families import Makers, Place, image_processor_of
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.processor import Frames
from ds_dip.files import first_line


class InternVL:
    """InternVL 3. Field ``pixels`` [rows, channels patch²]: of every tile a row of zeros, then its patches.

    An instance is an image with all its tiles.
    """

    fields: tuple[str, ...] = ("pixels",)

    def __init__(self, folder: str, config: Mapping[str, Any], tokenizer: Any, frames: Frames) -> None:
        vision = config["vision_config"]
        self._image = image_processor_of(folder)
        self._side = int(vision["image_size"][0]) // int(vision["patch_size"][0])
        self._merged = int((self._side * config.get("downsample_ratio", 0.5)) ** 2)
        (name,) = tokenizer.convert_ids_to_tokens([config["image_token_id"]])
        self.marks: Mapping[Kind, str] = {"image": name}
        self._ends = getattr(tokenizer, "start_image_token", "<img>"), getattr(tokenizer, "end_image_token", "</img>")
        self.frames = frames

    def place(self, facts: Facts, *, several: bool) -> Place:
        """See Family."""
        tiles = self._image.get_number_of_image_patches(facts.height, facts.width, {"crop_to_patches": True})
        start, end = self._ends
        text = f"{start}{self.marks['image'] * (tiles * self._merged)}{end}"
        return Place(text, (tiles * (self._side**2 + 1),), (tiles * self._merged,))

    def makers(
        self,
        media: Sequence[Media],
        facts: Sequence[Facts],
        places: Callable[[], Sequence[Place]],
        tokens: Callable[[], np.ndarray],
    ) -> Makers:
        """See Family."""
        return {"pixels": lambda: [self._pixels(medium) for medium in media]}

    def _pixels(self, medium: Media) -> np.ndarray:
        from PIL import Image

        made = self._image([Image.fromarray(decode.image(medium))], crop_to_patches=True, return_tensors="np")
        tiles = np.asarray(made["pixel_values"], dtype=np.float32)
        side, (count, channels, edge, _) = self._side, tiles.shape
        cut = tiles.reshape(count, channels, side, edge // side, side, edge // side).transpose(0, 2, 4, 1, 3, 5)
        rows = cut.reshape(count, side**2, -1)
        return np.pad(rows, ((0, 0), (1, 0), (0, 0))).reshape(-1, rows.shape[2])


class QwenAudio:
    """Qwen2-Audio. Field ``mel`` [rows, 3 bins]: two frames of the spectrogram a row, and the next one.

    An instance is a sound; what is longer than the model hears is cut off.
    """

    fields: tuple[str, ...] = ("mel",)

    def __init__(self, folder: str, config: Mapping[str, Any], tokenizer: Any, frames: Frames) -> None:
        from transformers import AutoFeatureExtractor

        try:
            self._sound = AutoFeatureExtractor.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            raise ValueError(f"{folder}: its feature extractor cannot be read ({first_line(error)})") from error
        token = config["audio_token_index"] if "audio_token_index" in config else config["audio_token_id"]
        (name,) = tokenizer.convert_ids_to_tokens([token])
        self.marks: Mapping[Kind, str] = {"audio": name}
        self.frames = frames

    def _rows(self, facts: Facts) -> int:
        samples = min(decode.samples_at(facts, self._sound.sampling_rate), self._sound.n_samples)
        frames = -(-int(samples) // int(self._sound.hop_length))
        return (frames - 1) // 2 + 1

    def place(self, facts: Facts, *, several: bool) -> Place:
        """See Family."""
        rows = self._rows(facts)
        if rows < 2:
            raise ValueError(f"a sound of {facts.seconds:.3f} s is too short for a token; leave it out")
        return Place(self.marks["audio"] * (rows // 2), (rows,), (rows // 2,))

    def makers(
        self,
        media: Sequence[Media],
        facts: Sequence[Facts],
        places: Callable[[], Sequence[Place]],
        tokens: Callable[[], np.ndarray],
    ) -> Makers:
        """See Family."""
        return {"mel": lambda: [self._mel(medium, own) for medium, own in zip(media, facts, strict=True)]}

    def _mel(self, medium: Media, facts: Facts) -> np.ndarray:
        rate, rows = self._sound.sampling_rate, self._rows(facts)
        sound = decode.audio(medium, rate, facts)[: self._sound.n_samples]
        made = self._sound(sound, sampling_rate=rate, padding="max_length", return_tensors="np")
        frames = np.pad(np.asarray(made["input_features"][0], dtype=np.float32).T, ((0, 1), (0, 0)))
        return np.concatenate(
            [frames[0 : 2 * rows : 2], frames[1 : 2 * rows : 2], frames[2 : 2 * rows + 1 : 2]], axis=1
        )
