"""Bytes of a layer: kept for its backward, with and without selective recomputation, and needed while it runs.

They are what torch's operators really allocate, in the order in which autograd frees what a forward kept; the tests
hold them against the allocator's own figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ds_dip.costs.operations import operations
from ds_dip.costs.operators import is_reordered, runs_of
from ds_dip.costs.parallel import ALONE, TensorParallel
from ds_dip.models.kinds import MODULATIONS, TIMESTEP, inner_of, windows
from ds_dip.models.parameters import groups_of
from ds_dip.models.spec import ELEMENT_BYTES, Layer, Sizes

_INDEX, _FP32 = 8, 4


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one layer for some instances.

    ``kept`` is what its forward leaves for the backward, its input included and its output not, and
    ``selective`` the same where norms and activation functions run again. ``backward`` is the most that
    its backward holds beyond what is kept and the gradient of its output, ``recomputed`` what of it
    selective recomputation adds. ``forward`` is the most that a forward which keeps nothing holds beside its input, and
    ``passing`` what one that keeps the selection holds beside that and its output.
    """

    kept: float
    selective: float
    backward: float
    recomputed: float
    forward: float
    passing: float


@dataclass(frozen=True, slots=True)
class _Case:
    """Bytes of an element and of one of statistics (at least fp32), whether weights are trained, the loss follows.

    What lies between the matrices is shared among ``rows`` devices; the options are those of one device already.
    """

    element: int
    statistic: int
    trained: bool
    loss: bool
    rows: int


def footprint(
    layer: Layer,
    sizes: Sizes,
    compute: str,
    *,
    loss: bool = False,
    frozen: bool = False,
    parallel: TensorParallel = ALONE,
) -> Footprint:
    """What a layer holds, on each of the devices that share it; ``loss`` if the loss follows it.

    While a layer runs each device has all rows between its matrices, whether or not they are shared afterwards.

    A layer of another kind tells ``kept_per_token`` and, where it uses ``Context.cheap``,
    ``selective_per_token`` elements (see ``operations``).
    """
    if layer.kind not in _FOOTPRINTS:
        return _unknown(layer, sizes, compute, parallel)
    return _known(layer.kind, tuple(layer.options.items()), sizes, compute, loss, frozen, parallel)


@lru_cache(maxsize=8192)
def _known(
    kind: str,
    options: tuple[tuple[str, int], ...],
    sizes: Sizes,
    compute: str,
    loss: bool,
    frozen: bool,
    parallel: TensorParallel,
) -> Footprint:
    width, own = ELEMENT_BYTES[compute], dict(options)
    # A merger's second matrix is cut by rows: its results are whole on every device.
    own |= {name: -(-own[name] // parallel.degree) for name in ("heads", "ffn", "vocabulary") if name in own}
    if "kv_heads" in own:
        own["kv_heads"] = groups_of(own, parallel.degree)
    return _FOOTPRINTS[kind](own, sizes, _Case(width, max(width, _FP32), not frozen, loss, parallel.rows))


def _unknown(layer: Layer, sizes: Sizes, compute: str, parallel: TensorParallel) -> Footprint:
    width = ELEMENT_BYTES[compute]
    count = operations(layer, sizes, parallel)
    kept = count.kept * width
    selective = kept
    if "selective_per_token" in layer.options:
        selective = min(kept, float(sum(sizes.tokens) * layer.options["selective_per_token"] * width))
    output = sum(spec.bytes(sizes, compute) for spec in layer.output)
    return Footprint(kept, selective, output + count.weights * width, kept - selective, 2.0 * output, output)


def _norm(rows: int, hidden: int, w: _Case, *, root: bool) -> float:
    """What a norm and the product after it keep beside the norm's input: the normed rows, and statistics.

    Torch's root mean square norm keeps its rows before the weights too; in half precision it works on a copy in fp32,
    and keeps that in place of its input.
    """
    if root and w.element < w.statistic:
        return rows * (2 * hidden * w.statistic + w.statistic)
    return rows * (hidden * w.element * (2 if root else 1) + (1 if root else 2) * w.statistic)


def _block(o: Mapping[str, int], sizes: Sizes, w: _Case, *, decoder: bool) -> Footprint:
    n, hidden, inner = sum(sizes.tokens), o["hidden"], o["ffn"]
    queries, keys = o["heads"] * o["head_dim"], o["kv_heads"] * o["head_dim"]
    # Attention keeps views of the projection, and with rotary positions of its turned copy; or copies in another order.
    attended, pieces = queries + 2 * keys, windows(sizes.tokens, o.get("window"))
    if decoder and not is_reordered(pieces):
        attended += queries + keys
    mixed = queries * (2 if len(runs_of(pieces)) > 1 else 1)
    norms = 2 * _norm(n, hidden, w, root=decoder) / w.rows
    again = n * inner * w.element * (2 if o["gated"] else 1)
    held = n * w.element * (2 * hidden / w.rows + attended + mixed) + n * o["heads"] * w.statistic + again
    weights = hidden * inner * w.element if w.trained else 0
    grown = n * inner * w.element
    backward = max(2 * grown, grown + weights) if o["gated"] else grown + weights
    forward = n * w.element * (hidden + 4 * inner if o["gated"] else 2 * hidden + 2 * inner)
    # What runs again, and its gradient beside the weights' while its own backward runs.
    recomputed = again + (3 * grown + weights - backward if o["gated"] else 0)
    return Footprint(held + norms + again, held, backward, recomputed, forward, again)


def _patch_embedding(o: Mapping[str, int], sizes: Sizes, w: _Case) -> Footprint:
    n, pixels = sum(sizes.tokens) / w.rows, o["patch"] ** 2 * o["channels"]
    kept = n * pixels * w.element
    weights = max(pixels, o["side"]) * o["hidden"] * w.element if w.trained else 0
    rows = float(n * o["hidden"] * w.element)
    return Footprint(kept, kept, weights, 0.0, 4.0 * rows, 3.0 * rows)


def _merger(o: Mapping[str, int], sizes: Sizes, w: _Case) -> Footprint:
    n, m = sum(sizes.tokens), sum(sizes.merged)
    again = _norm(n, o["hidden"], w, root=False) / w.rows
    inner = inner_of(o)
    held = (n * o["hidden"] / w.rows + m * inner) * w.element
    weights = o["merge"] * o["hidden"] * inner * w.element if w.trained else 0
    rows = n * o["hidden"] * w.element
    return Footprint(held + again, held, rows + weights, again + rows, 2.0 * rows, rows)


def _token_embedding(o: Mapping[str, int], sizes: Sizes, w: _Case) -> Footprint:
    n = sum(sizes.tokens)
    kept = float(n * _INDEX)
    rows, weights = n * o["hidden"] * w.element, o["vocabulary"] * o["hidden"] * w.element if w.trained else 0
    return Footprint(kept, kept, rows + weights, 0.0, 2.0 * rows, rows)


def _head(o: Mapping[str, int], sizes: Sizes, w: _Case) -> Footprint:
    n, hidden, vocabulary = sum(sizes.tokens), o["hidden"], o["vocabulary"]
    again, rows = _norm(n, hidden, w, root=True) / w.rows, n * hidden * w.element / w.rows
    logits = n * vocabulary * w.statistic if w.loss else 0
    held = rows + logits + (n * _INDEX if w.loss else 0)
    weights = (vocabulary * hidden * w.element if w.trained else 0) + rows
    # The cross entropy's gradient, then the logits', while its own output is still there.
    backward = max(2 * logits, weights)
    forward = n * vocabulary * w.element + logits
    return Footprint(held + again, held, backward, 0.0, forward, 0.0)


def _text_output(o: Mapping[str, int], sizes: Sizes, w: _Case) -> Footprint:
    n, hidden = sum(sizes.tokens), o["hidden"]
    rows = n * hidden * w.element / w.rows
    kept = rows + _norm(n, hidden, w, root=True) / w.rows
    return Footprint(kept, kept, rows, 0.0, 2.0 * rows, rows)


def _video_embedding(o: Mapping[str, int], sizes: Sizes, w: _Case) -> Footprint:
    n, hidden = sum(sizes.tokens) / w.rows, o["hidden"]
    # Noised patches and the places of their positions, text, and what the three projections of the timestep take.
    clips = len(sizes) * (TIMESTEP + 4 * hidden)
    kept = n * (o["numbers"] * w.element + 3 * _INDEX) + (sum(sizes.merged) * o["text"] + clips) * w.element
    weights = max(MODULATIONS * hidden, o["text"], o["numbers"]) * hidden * w.element if w.trained else 0
    rows = float(n * hidden * w.element)
    forward = n * (o["numbers"] * w.element + 3 * _INDEX) + 5 * rows
    return Footprint(kept, kept, weights, 0.0, forward, 4 * rows)


def _diffusion_block(o: Mapping[str, int], sizes: Sizes, w: _Case) -> Footprint:
    n, m, hidden, inner = sum(sizes.tokens), sum(sizes.merged), o["hidden"], o["ffn"]
    queries, keys = o["heads"] * o["head_dim"], o["kv_heads"] * o["head_dim"]
    rows = n * hidden * w.element / w.rows
    # Queries, keys, values and mixed rows of the clip; queries and mixed rows, twice, of the text, its keys and values.
    mixed = queries * (2 if len(runs_of(sizes.tokens)) > 1 else 1)
    attended = n * (4 * queries + 2 * keys + mixed) + 2 * m * keys
    # The inputs of the three parts and what is gated; text, and the modulation and its sum with the block's own.
    held = 5 * rows + (m / w.rows + 2 * MODULATIONS * len(sizes)) * hidden * w.element
    again = n * inner * w.element * (2 if o["gated"] else 1)
    held += attended * w.element + 2 * n * o["heads"] * w.statistic + again
    # Of both modulated norms the normed rows, their scale, the result, and statistics.
    norms = 2 * (3 * rows + 2 * n * w.statistic / w.rows)
    grown, weights = n * inner * w.element, hidden * inner * w.element if w.trained else 0
    # Devices that share rows gather the gradients of all before a matrix's own.
    gathered = n * hidden * w.element if w.rows > 1 else 0
    backward = gathered + max(2 * grown - rows if o["gated"] else 0, grown + weights, 2 * rows)
    most = gathered + max((5 if o["gated"] else 2) * grown + weights, 5 * rows)
    forward = max(n * w.element * (hidden + 4 * inner if o["gated"] else 2 * hidden + 2 * inner), 9 * rows)
    return Footprint(held + norms + again, held, backward, max(0.0, most - backward), forward, max(again, 2 * rows))


def _video_output(o: Mapping[str, int], sizes: Sizes, w: _Case) -> Footprint:
    n, hidden = sum(sizes.tokens) / w.rows, o["hidden"]
    rows, numbers = n * hidden * w.element, n * o["numbers"] * w.element
    # Shift and scale of every clip stay only where the norm runs again.
    held, again = rows + 2 * len(sizes) * hidden * w.element, 3 * rows + 2 * n * w.statistic
    weights = o["numbers"] * hidden * w.element if w.trained else 0
    backward = rows + max(rows, weights)
    return Footprint(rows + again, held, backward, again + rows, 4 * rows + numbers, 4 * rows)


_FOOTPRINTS: Mapping[str, Callable[[Mapping[str, int], Sizes, _Case], Footprint]] = {
    "patch_embedding": _patch_embedding,
    "encoder_block": lambda o, sizes, w: _block(o, sizes, w, decoder=False),
    "merger": _merger,
    "token_embedding": _token_embedding,
    "decoder_block": lambda o, sizes, w: _block(o, sizes, w, decoder=True),
    "head": _head,
    "text_output": _text_output,
    "video_embedding": _video_embedding,
    "diffusion_block": _diffusion_block,
    "video_output": _video_output,
}
