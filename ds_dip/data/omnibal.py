"""Real samples' sizes: records a sample as ModelTC/OmniBal publishes them (``data/vision``, Apache-2.0).

A record of AI2D or DocVQA under InternVL tiling says how many tiles an image was cut into (``vit_num``) and the tokens
of the whole sequence (``token_num``), tiles included, 256 a tile: of 448 pixels, with patches of 14, 1024 patches of
which 4 are merged (InternViT). There are no images in it, so this dataset is for planning only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ds_dip.data.metadata import SampleMetadata
from ds_dip.files import FileError, read_text

PATCHES, MERGED = 1024, 256


class OmniBal:
    """The records of one file, in its order; a tile is ``patches`` patches, merged to ``merged`` tokens.

    Every token that is no tile's counts as supervised but the first one.
    Raises FileError, one sentence with the record, the value found and what was expected.
    """

    def __init__(self, path: str, patches: int = PATCHES, merged: int = MERGED) -> None:
        if patches < 1 or merged < 1:
            raise ValueError(f"patches is {patches} and merged {merged}, expected at least 1")
        self.path, self.patches, self.merged = path, patches, merged
        self._records = _read(path, merged)

    def __len__(self) -> int:
        return len(self._records)

    def metadata(self, index: int) -> SampleMetadata:
        """Tiles and tokens of the record at ``index``."""
        tiles, tokens = self._records[index]
        return SampleMetadata(
            id=f"{Path(self.path).stem}-{index}",
            modules={"vision": (self.patches,) * tiles, "language": (tokens,)},
            loss_tokens=tokens - tiles * self.merged - (tiles == 0),
            merged={"vision": (self.merged,) * tiles, "language": (tokens,)},
        )

    def load(self, sample: str, fields: Sequence[str]) -> NoReturn:
        """Refuse: the records hold sizes alone."""
        raise ValueError(
            f"{self.path} holds sizes of samples without their images and texts: plan with it, and train on a dataset "
            "that has them"
        )


def _read(path: str, merged: int) -> list[tuple[int, int]]:
    try:
        document = json.loads(read_text(path, "records of OmniBal"))
    except FileError:
        raise
    except ValueError as error:
        raise FileError(f"{path}: is not JSON ({error}); give a file of OmniBal's data/vision") from error
    if not isinstance(document, list) or not document:
        raise FileError(f"{path}: expected a list of at least one record; give a file of OmniBal's data/vision")
    return [_record(f"{path}: record {number}", record, merged) for number, record in enumerate(document)]


def _record(where: str, record: object, merged: int) -> tuple[int, int]:
    if not isinstance(record, Mapping):
        raise FileError(f"{where} is {str(record)[:40]!r}, expected an object with vit_num and token_num")
    for name, least in (("vit_num", 0), ("token_num", 1)):
        value = record.get(name)
        if type(value) is not int or value < least:
            raise FileError(f"{where}: field {name!r} is {value!r}, expected a whole number of at least {least}")
    tiles, tokens = record["vit_num"], record["token_num"]
    if tokens <= tiles * merged:
        raise FileError(
            f"{where}: field 'token_num' is {tokens}, expected more than the {tiles * merged} tokens of {tiles} tiles"
        )
    return tiles, tokens
