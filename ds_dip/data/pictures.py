"""Pictures with captions for a diffusion transformer: sizes by their headers, latents by the pipeline's own encoder.

Files are JSON Lines as transformers' and diffusers' image folders have them, ``{"file_name": …, "text": …}`` a line,
with names relative to the file. Fields are those that ``ds_dip.models.from_diffusers`` reads for text to image:
``tokens`` of captions, and of pictures ``latents`` [patches, numbers] and ``places`` [patches, 2].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ds_dip.data.conversations import decode
from ds_dip.data.conversations.conversation import Media
from ds_dip.data.conversations.headers import MediaError, facts_of
from ds_dip.data.metadata import SampleMetadata
from ds_dip.files import FileError, first_line, parse_object, read_object, read_text

_MOST_BYTES = 1 << 24


class Pictures:
    """Samples of ``files``, a picture and its caption each, for the folder ``pipeline`` that diffusers saved.

    A picture is resized to about ``size`` x ``size`` pixels of its own shape, in whole patches; a caption is cut at
    ``length`` tokens. The pipeline has a tokenizer, a ``vae`` and a transformer; latents are the mean of what the
    encoder gives, kept in memory once they were made. Raises FileError for files, with their line, and ValueError for
    options.
    """

    def __init__(self, files: str | Sequence[str], pipeline: str, size: int = 512, length: int = 300) -> None:
        self._folder, self._size, self._length = Path(pipeline), size, length
        transformer = read_object(self._folder / "transformer" / "config.json", "a transformer", _MOST_BYTES)
        encoder = read_object(self._folder / "vae" / "config.json", "an encoder of pictures", _MOST_BYTES)
        self._patch = int(transformer["patch_size"])
        #: Pixels of a patch's side.
        self._pixels = self._patch * 2 ** (len(encoder["block_out_channels"]) - 1)
        if size < self._pixels or length < 1:
            raise ValueError(f"size is {size} and length {length}; give at least {self._pixels} pixels and 1 token")
        self._latents: dict[int, np.ndarray] = {}
        paths = [files] if isinstance(files, str) else list(files)
        self._rows = [row for path in paths for row in self._read(Path(path))]
        if not self._rows:
            raise FileError(f"{', '.join(paths)}: no picture is named; give lines with file_name and text")

    def _read(self, path: Path) -> list[tuple[Media, list[int], tuple[int, int]]]:
        """Of every line the picture, the caption's tokens, and the picture's rows and columns of patches."""
        found = []
        for number, line in enumerate(read_text(path, "pictures and captions").split("\n"), start=1):
            if not line.strip():
                continue
            where = f"{path}: line {number}"
            row = parse_object(line, where, "one object a line")
            for key in ("file_name", "text"):
                if not isinstance(row.get(key), str) or not row[key].strip():
                    raise FileError(f"{where}: field {key!r} is {row.get(key)!r}, expected text")
            place = (path.parent / row["file_name"]).resolve()
            if not place.is_relative_to(path.parent.resolve()):
                raise FileError(f"{where}: {row['file_name']!r} lies outside {path.parent}; put pictures beside it")
            media = Media("image", row["file_name"], path=str(place))
            try:
                facts = facts_of(media)
            except (MediaError, OSError) as error:
                raise FileError(f"{where}: {row['file_name']!r} cannot be read ({first_line(error)})") from error
            tokens = self._tokenizer(row["text"], truncation=True, max_length=self._length)["input_ids"]
            found.append((media, tokens, self._grid(facts.height, facts.width)))
        return found

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        scale = self._size / (height * width) ** 0.5 / self._pixels
        return max(1, round(height * scale)), max(1, round(width * scale))

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self._folder / "tokenizer", local_files_only=True)
        except (OSError, ValueError) as error:
            raise FileError(f"{self._folder / 'tokenizer'} cannot be read ({first_line(error)})") from error

    @cached_property
    def _encoder(self) -> Any:
        from diffusers import AutoencoderKL

        try:
            return AutoencoderKL.from_pretrained(self._folder / "vae", local_files_only=True).eval()
        except (OSError, ValueError) as error:
            raise FileError(f"{self._folder / 'vae'} cannot be read ({first_line(error)})") from error

    def __len__(self) -> int:
        return len(self._rows)

    def metadata(self, index: int) -> SampleMetadata:
        """Sizes of a sample."""
        _, tokens, (rows, columns) = self._rows[index]
        words, patches = (len(tokens),), (rows * columns,)
        merged = {"text": words, "image": words}
        return SampleMetadata(str(index), {"text": words, "image": patches}, patches[0], merged)

    def load(self, sample: str, fields: Sequence[str]) -> Mapping[str, list[np.ndarray]]:
        """These fields of a sample; FileError for a picture that cannot be decoded."""
        index = int(sample)
        _, tokens, grid = self._rows[index]
        makers: Mapping[str, Callable[[], np.ndarray]] = {
            "tokens": lambda: np.array(tokens, dtype=np.int64),
            "places": lambda: np.stack(np.unravel_index(np.arange(grid[0] * grid[1]), grid), axis=1),
            "latents": lambda: self._encoded(index),
        }
        return {name: [makers[name]()] for name in fields}

    def _encoded(self, index: int) -> np.ndarray:
        """A picture's latents, patch by patch, a patch's numbers in height, width and channel."""
        if index not in self._latents:
            media, _, grid = self._rows[index]
            self._latents[index] = self._encode(media, grid)
        return self._latents[index]

    def _encode(self, media: Media, grid: tuple[int, int]) -> np.ndarray:
        import torch
        from PIL import Image

        try:
            picture = Image.fromarray(decode.image(media, facts_of(media)))
        except MediaError as error:
            raise FileError(f"{media.path} cannot be read ({first_line(error)})") from error
        wide, tall = grid[1] * self._pixels, grid[0] * self._pixels
        resized = np.asarray(picture.resize((wide, tall), Image.Resampling.BICUBIC), dtype=np.float32)
        encoder = self._encoder
        with torch.no_grad():
            pixels = torch.from_numpy(resized / 127.5 - 1.0).permute(2, 0, 1)[None]
            latents = encoder.encode(pixels).latent_dist.mean[0]
        shift = encoder.config.shift_factor or 0.0
        scaled: np.ndarray = ((latents - shift) * encoder.config.scaling_factor).numpy()
        cut = scaled.reshape(len(scaled), grid[0], self._patch, grid[1], self._patch)
        rows: np.ndarray = np.ascontiguousarray(cut.transpose(1, 3, 2, 4, 0).reshape(grid[0] * grid[1], -1))
        return rows
