"""Conversations for Qwen2-Audio."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.conversation import Kind, Media
from ds_dip.data.conversations.families import Makers, Place, token_of
from ds_dip.data.conversations.headers import Facts
from ds_dip.data.conversations.processor import Frames
from ds_dip.files import first_line


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
        self.marks: Mapping[Kind, str] = {"audio": tokenizer.convert_ids_to_tokens(token_of(config, "audio"))}
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
