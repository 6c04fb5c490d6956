"""How many images real samples hold: tiles a sample in OmniBal's records.

Counted from the per-sample records of AI2D and DocVQA under InternVL tiling that ModelTC/OmniBal publishes
(``vit_num`` in its ``data/vision``, Apache-2.0).
"""

from __future__ import annotations

from random import Random

#: Samples by number of tiles: 12 413 of AI2D.
AI2D = {1: 5793, 3: 3710, 4: 603, 5: 2307}
#: Samples by number of tiles: 10 211 of DocVQA.
DOCVQA = {1: 15, 3: 1895, 4: 35, 5: 8266}

TILES = tuple(sorted({*AI2D, *DOCVQA}))
COUNTS = tuple(AI2D.get(tiles, 0) + DOCVQA.get(tiles, 0) for tiles in TILES)

#: How often a sample holds no, one, two or three of those pictures: text-only samples and the tail of conversations.
PICTURES = (0.25, 0.55, 0.13, 0.07)


def image_count(random: Random, most: int) -> int:
    """Draw a sample's number of images: the tiles of zero to three pictures together, at most ``most``."""
    (pictures,) = random.choices(range(len(PICTURES)), weights=PICTURES)
    return min(most, sum(random.choices(TILES, weights=COUNTS, k=pictures)))
