"""Operation counts of a layer's forward, from its kind, its options and the instances' sizes.

Linear layers work on the packed length, attention on every instance by itself: its products grow
with the sum of the squares (DFLOP, model profiler).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from ds_dip.models.spec import Layer, Sizes


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating-point operations; elements kept for the backward, moved through memory, and of weights."""

    flops: float
    kept: float
    moved: float
    weights: float


def is_known(layer: Layer) -> bool:
    """Whether ``operations`` counts this layer rather than guesses."""
    return layer.kind in _COUNTS or "flops_per_token" in layer.options


def operations(layer: Layer, sizes: Sizes) -> Operations:
    """Counts of one forward of a layer over these instances.

    A layer of another kind tells its own: ``flops_per_token``, and optionally ``kept_per_token``
    elements and ``weights`` elements. One that tells nothing counts as a dense layer as wide as its
    output (see ``is_known``).
    """
    if layer.kind in _COUNTS:
        return _COUNTS[layer.kind](layer.options, sizes)
    tokens = sum(sizes.tokens)
    width = max((prod(d for d in spec.dims if isinstance(d, int)) for spec in layer.output), default=1)
    kept = tokens * float(layer.options.get("kept_per_token", width))
    if "flops_per_token" in layer.options:
        weights = float(layer.options.get("weights", 0))
        return Operations(float(tokens * layer.options["flops_per_token"]), kept, 2 * kept, weights)
    return Operations(2.0 * tokens * width * width, kept, 2 * kept, float(width * width))


def _patch_embedding(o: Mapping[str, int], sizes: Sizes) -> Operations:
    n, pixels = sum(sizes.tokens), o["patch"] ** 2 * o["channels"]
    moved = n * (pixels + 3 * o["hidden"])
    return Operations(
        2 * n * pixels * o["hidden"], n * pixels, moved, pixels * o["hidden"] + 2 * o["side"] * o["hidden"]
    )


def _block(o: Mapping[str, int], sizes: Sizes, attended: float) -> Operations:
    """A transformer block; ``attended`` is the share of the N² products that are computed."""
    n, hidden, inner = sum(sizes.tokens), o["hidden"], o["ffn"]
    queries, keys = o["heads"] * o["head_dim"], o["kv_heads"] * o["head_dim"]
    weights = hidden * (2 * queries + 2 * keys) + (2 + o["gated"]) * hidden * inner
    products = 4 * attended * queries * sum(size * size for size in sizes.tokens)
    # Kept: inputs and outputs of both norms; queries, keys, values, mixed rows, log-sums; the feed-forward's inside.
    kept = n * (4 * hidden + 2 * queries + 2 * keys + o["heads"] + (4 if o["gated"] else 2) * inner)
    return Operations(2 * n * weights + products, kept, 2 * kept, weights)


def _merger(o: Mapping[str, int], sizes: Sizes) -> Operations:
    n, m = sum(sizes.tokens), sum(sizes.merged)
    weights = o["merge"] * o["hidden"] * o["output"] + o["output"] ** 2
    kept = 2 * n * o["hidden"] + 2 * m * o["output"]
    return Operations(2 * m * weights, kept, 2 * kept, weights)


def _token_embedding(o: Mapping[str, int], sizes: Sizes) -> Operations:
    n = sum(sizes.tokens)
    # Only the rows looked up are read; a token's number is kept, in as much memory as two elements.
    return Operations(0, 2 * n, 4 * n * o["hidden"], 0)


def _head(o: Mapping[str, int], sizes: Sizes) -> Operations:
    n, weights = sum(sizes.tokens), o["hidden"] * o["vocabulary"]
    kept = 2 * n * (o["hidden"] + o["vocabulary"])
    return Operations(2 * n * weights, kept, 2 * kept, weights)


_COUNTS: Mapping[str, Callable[[Mapping[str, int], Sizes], Operations]] = {
    "patch_embedding": _patch_embedding,
    "encoder_block": lambda options, sizes: _block(options, sizes, 1.0),
    "merger": _merger,
    "token_embedding": _token_embedding,
    "decoder_block": lambda options, sizes: _block(options, sizes, 0.5),
    "head": _head,
}
