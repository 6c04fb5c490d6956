"""Operation counts of a layer's forward, from its kind, its options and the instances' sizes.

Linear layers work on the packed length, attention on every instance by itself: its products grow
with the sum of the squares (DFLOP, model profiler).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from ds_dip.costs.parallel import ALONE, TensorParallel
from ds_dip.models.kinds import MODULATIONS, TIMESTEP, inner_of, windows
from ds_dip.models.parameters import groups_of
from ds_dip.models.spec import Layer, Sizes

Options = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Operations:
    """Floating-point operations; elements kept for the backward, moved through memory, and of weights.

    ``sums`` and ``backward_sums`` are the elements of every all-reduce among tensor-parallel devices.
    """

    flops: float
    kept: float
    moved: float
    weights: float
    sums: tuple[float, ...] = ()
    backward_sums: tuple[float, ...] = ()


def is_known(layer: Layer) -> bool:
    """Whether ``operations`` counts this layer rather than guesses."""
    return layer.kind in _COUNTS or "flops_per_token" in layer.options


def operations(layer: Layer, sizes: Sizes, parallel: TensorParallel = ALONE) -> Operations:
    """Counts of one forward of a layer over these instances, on one of the devices that share it.

    Feed-forwards and vocabularies are shared to the element; fewer key/value groups than devices are computed more
    than once; embeddings of patches are cut by rows, where those are. A layer of another kind tells its own:
    ``flops_per_token``, and optionally ``kept_per_token`` elements and ``weights`` elements. One that tells nothing
    counts as a dense layer as wide as its output (see ``is_known``); every device does all of it.
    """
    if layer.kind in _COUNTS:
        return _COUNTS[layer.kind](layer.options, sizes, parallel)
    tokens = sum(sizes.tokens)
    width = max((prod(d for d in spec.dims if isinstance(d, int)) for spec in layer.output), default=1)
    kept = tokens * float(layer.options.get("kept_per_token", width))
    if "flops_per_token" in layer.options:
        weights = float(layer.options.get("weights", 0))
        return Operations(float(tokens * layer.options["flops_per_token"]), kept, 2 * kept, weights)
    return Operations(2.0 * tokens * width * width, kept, 2 * kept, float(width * width))


def _patch_embedding(o: Options, sizes: Sizes, p: TensorParallel) -> Operations:
    n, pixels = sum(sizes.tokens) / p.rows, o["patch"] ** 2 * o["channels"]
    moved = n * (pixels + 3 * o["hidden"])
    return Operations(
        2 * n * pixels * o["hidden"], n * pixels, moved, pixels * o["hidden"] + 2 * o["side"] * o["hidden"]
    )


def _block(o: Options, sizes: Sizes, p: TensorParallel, attended: float) -> Operations:
    """A transformer block; ``attended`` is the share of the N² products that are computed."""
    n, hidden, inner = sum(sizes.tokens), o["hidden"], o["ffn"] / p.degree
    queries, keys = o["heads"] / p.degree * o["head_dim"], groups_of(o, p.degree) * o["head_dim"]
    weights = hidden * (2 * queries + 2 * keys) + (2 + o["gated"]) * hidden * inner
    products = 4 * attended * queries * sum(size * size for size in windows(sizes.tokens, o.get("window")))
    # Kept: inputs and outputs of both norms; queries, keys, values, mixed rows, log-sums; the feed-forward's inside.
    kept = n * (4 * hidden / p.rows + 2 * queries + 2 * keys + o["heads"] / p.degree + (4 if o["gated"] else 2) * inner)
    sums = (n * hidden,) * 2
    return Operations(2 * n * weights + products, kept, 2 * kept, weights, sums, sums)


def _merger(o: Options, sizes: Sizes, p: TensorParallel) -> Operations:
    n, m = sum(sizes.tokens), sum(sizes.merged)
    inner = inner_of(o)
    weights = inner * (o["merge"] * o["hidden"] + o["output"]) / p.degree
    kept = 2 * n * o["hidden"] / p.rows + 2 * m * inner / p.degree
    return Operations(2 * m * weights, kept, 2 * kept, weights, (m * o["output"],), (n * o["hidden"],))


def _token_embedding(o: Options, sizes: Sizes, _: TensorParallel) -> Operations:
    n = sum(sizes.tokens)
    # Only the rows looked up are read; a token's number is kept, in as much memory as two elements.
    return Operations(0, 2 * n, 4 * n * o["hidden"], 0, (n * o["hidden"],))


def _head(o: Options, sizes: Sizes, p: TensorParallel) -> Operations:
    n, vocabulary = sum(sizes.tokens), o["vocabulary"] / p.degree
    weights = o["hidden"] * vocabulary
    kept = 2 * n * (o["hidden"] / p.rows + vocabulary)
    return Operations(2 * n * weights, kept, 2 * kept, weights, (), (n * o["hidden"],))


def _text_output(o: Options, sizes: Sizes, p: TensorParallel) -> Operations:
    kept = 2 * sum(sizes.tokens) * o["hidden"] / p.rows
    return Operations(0, kept, 2 * kept, 0)


def _video_embedding(o: Options, sizes: Sizes, p: TensorParallel) -> Operations:
    n, m, clips, hidden = sum(sizes.tokens) / p.rows, sum(sizes.merged), len(sizes), o["hidden"]
    timestep = (TIMESTEP + (1 + MODULATIONS) * hidden) * hidden
    # Kept: patches, text, and what the three projections of the timestep take.
    kept = n * o["numbers"] + m * o["text"] + clips * (TIMESTEP + 4 * hidden)
    moved = n * (o["numbers"] + 4 * hidden) + m * (o["text"] + hidden) + clips * (8 + MODULATIONS) * hidden
    flops = 2 * (n * o["numbers"] * hidden + m * o["text"] * hidden + clips * timestep)
    return Operations(flops, kept, moved, (o["numbers"] + o["text"]) * hidden + timestep)


def _diffusion_block(o: Options, sizes: Sizes, p: TensorParallel) -> Operations:
    n, m, hidden, inner = sum(sizes.tokens), sum(sizes.merged), o["hidden"], o["ffn"] / p.degree
    heads = o["heads"] / p.degree
    queries, keys = heads * o["head_dim"], groups_of(o, p.degree) * o["head_dim"]
    own, forward = 2 * hidden * (queries + keys), (2 + o["gated"]) * hidden * inner
    pairs = sum(size * (size + text) for size, text in zip(sizes.tokens, sizes.merged, strict=True))
    linear = n * (own + 2 * hidden * queries + forward) + 2 * m * hidden * keys
    # Kept a patch: inputs of the three parts; of both modulated ones the norm, its scale, the result and what is gated;
    # queries, keys and values of the first attention, queries of the second, both mixed and log-sums; the
    # feed-forward's inside. Of the text its rows, keys and values.
    kept = n * (11 * hidden / p.rows + 4 * queries + 2 * keys + 2 * heads + (4 if o["gated"] else 2) * inner)
    kept += m * (hidden + 2 * keys)
    # Both gates are spread to rows, which are moved but not kept.
    moved, sums = 2 * (kept + 2 * n * hidden / p.rows), (n * hidden,) * 3
    return Operations(2 * linear + 4 * queries * pairs, kept, moved, 2 * own + forward, sums, (*sums, m * hidden))


def _video_output(o: Options, sizes: Sizes, p: TensorParallel) -> Operations:
    n, weights = sum(sizes.tokens) / p.rows, o["hidden"] * o["numbers"]
    kept = n * (3 * o["hidden"] + o["numbers"])
    return Operations(2 * n * weights, kept, 2 * kept, weights)


_COUNTS: Mapping[str, Callable[[Options, Sizes, TensorParallel], Operations]] = {
    "patch_embedding": _patch_embedding,
    "encoder_block": lambda o, sizes, p: _block(o, sizes, p, 1.0),
    "merger": _merger,
    "token_embedding": _token_embedding,
    "decoder_block": lambda o, sizes, p: _block(o, sizes, p, 0.5),
    "head": _head,
    "text_output": _text_output,
    "video_embedding": _video_embedding,
    "diffusion_block": _diffusion_block,
    "video_output": _video_output,
}
