"""How many images real samples hold: tiles a sample in OmniBal's records.

Counted from the per-sample records of AI2D under InternVL tiling that ModelTC/OmniBal publishes (``vit_num`` of its
``data/vision``, Apache-2.0).
"""

from __future__ import annotations

from random import Random

#: Samples by number of tiles, 12 413 in all.
AI2D = {1: 5793, 3: 3710, 4: 603, 5: 2307}

#: Shares of samples: text only; one small image, which is not tiled; and one, two or three pictures, which are.
MIX = {"text": 0.2, "image": 0.25, "picture": 0.38, "two pictures": 0.11, "three pictures": 0.06}
_PICTURES = {"picture": 1, "two pictures": 2, "three pictures": 3}


def image_count(random: Random, most: int) -> int:
    """Draw a sample's number of images, at most ``most``; 0 for a text-only sample."""
    (kind,) = random.choices(tuple(MIX), weights=tuple(MIX.values()))
    if kind in _PICTURES:
        return min(most, sum(random.choices(tuple(AI2D), weights=tuple(AI2D.values()), k=_PICTURES[kind])))
    return int(kind == "image")
