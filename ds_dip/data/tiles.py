"""How many images real samples hold: tiles a sample in OmniBal's records.

Counted from the per-sample records of AI2D under InternVL tiling that ModelTC/OmniBal publishes (``vit_num`` of its
``data/vision``, Apache-2.0).
"""

from __future__ import annotations

from random import Random

#: Samples by number of tiles, 12 413 in all.
AI2D = {1: 5793, 3: 3710, 4: 603, 5: 2307}

#: How often a sample holds no, one, two or three pictures: text-only samples, and the tail of conversations.
PICTURES = (0.2, 0.65, 0.1, 0.05)


def picture_count(random: Random) -> int:
    """Draw how many pictures a sample has."""
    return random.choices(range(len(PICTURES)), weights=PICTURES)[0]


def tile_count(random: Random, pictures: int, most: int) -> int:
    """Draw the tiles of that many pictures together, at most ``most``."""
    return min(most, sum(random.choices(tuple(AI2D), weights=tuple(AI2D.values()), k=pictures)))
