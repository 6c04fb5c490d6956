"""The operators that layers are made of: what each works through, and which of them a layer calls for its instances.

Linear layers work on the packed length, attention on every original instance (DFLOP, model profiler): equal ones run
as one batch, so it is charged a run of ``instances`` of one ``size``. Needs no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from ds_dip.models.kinds import MODULATIONS, PLACEHOLDER, TIMESTEP, inner_of, windows
from ds_dip.models.spec import Layer, Sizes

Shape = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations of a forward, and elements: moved through memory, of weights, kept for the backward."""

    flops: float
    moved: float
    weights: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True, slots=True)
class Operator:
    """``axes`` are the dimensions of a shape that vary with the data, outermost first; the others name the operator."""

    axes: tuple[str, ...]
    work: Callable[[Shape], Work]


@dataclass(frozen=True, slots=True)
class Call:
    """One use of an operator; an all-reduce is of the forward, the backward or both (``passes``)."""

    operator: str
    shape: Shape
    passes: str = "FB"


def _rows(per_row: Callable[[Shape], tuple[float, float, float]]) -> Operator:
    """An operator on rows of ``width``; ``per_row`` gives flops, moved and kept elements a row."""

    def work(shape: Shape) -> Work:
        flops, moved, kept = per_row(shape)
        rows = shape["rows"]
        return Work(rows * flops, rows * moved, 0.0, rows * kept)

    return Operator(("rows",), work)


def _link() -> Operator:
    """An operator between ranks: its work is the link's (see ``link_bytes``)."""
    return Operator(("bytes",), lambda _: Work(0, 0))


def _linear(s: Shape) -> Work:
    n, i, o = s["rows"], s["inputs"], s["outputs"]
    return Work(2.0 * n * i * o, n * (i + o), i * o, n * i)


def _attention(s: Shape) -> Work:
    rows, queries, keys = s["instances"] * s["size"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    products = (2.0 if s["causal"] else 4.0) * queries * rows * s["size"]
    kept = rows * (2 * queries + 2 * keys + s["heads"])
    return Work(products, 2.0 * rows * (queries + keys), 0.0, kept)


def _patch_embedding(s: Shape) -> Work:
    n, i, o = s["rows"], s["inputs"], s["hidden"]
    return Work(2.0 * n * i * o, n * (i + 5 * o), (i + 2 * s["side"]) * o, n * i)


def _latent_embedding(s: Shape) -> Work:
    n, i, o = s["rows"], s["inputs"], s["hidden"]
    return Work(2.0 * n * i * o, n * (3 * i + 7 * o), (i + 2 * s["side"] + s["frames"]) * o, n * i)


def _cross_attention(s: Shape) -> Work:
    rows, text, queries, keys = s["rows"], s["text"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    kept = rows * (2 * queries + s["heads"]) + 2 * text * keys
    return Work(4.0 * queries * rows * text, 2.0 * (rows * queries + text * keys), 0.0, kept)


OPERATORS: Mapping[str, Operator] = {
    "linear": Operator(("rows",), _linear),
    "attention": Operator(("instances", "size"), _attention),
    "packing": Operator(("runs", "rows"), lambda s: Work(0, 4.0 * s["rows"] * s["heads"] * s["head_dim"])),
    "rotary": _rows(lambda s: (6.0 * s["heads"] * s["head_dim"], 4.0 * s["heads"] * s["head_dim"], 0)),
    "layer_norm": _rows(lambda s: (8.0 * s["width"], 2.0 * s["width"], s["width"] + 2)),
    "rms_norm": _rows(lambda s: (5.0 * s["width"], 2.0 * s["width"], s["width"] + 1)),
    "silu_gate": _rows(lambda s: (6.0 * s["width"], 3.0 * s["width"], 3.0 * s["width"])),
    "gelu": _rows(lambda s: (12.0 * s["width"], 2.0 * s["width"], s["width"])),
    "tanh": _rows(lambda s: (8.0 * s["width"], 2.0 * s["width"], s["width"])),
    "residual": _rows(lambda s: (s["width"], 3.0 * s["width"], 0)),
    "gather": _rows(lambda s: (s["width"], 4.0 * s["width"], 0)),
    "patch_embedding": Operator(("rows",), _patch_embedding),
    "latent_embedding": Operator(("rows",), _latent_embedding),
    "cross_attention": Operator(("rows", "text"), _cross_attention),
    "modulate": _rows(lambda s: (12.0 * s["width"], 6.0 * s["width"], 3.0 * s["width"])),
    "gate": _rows(lambda s: (2.0 * s["width"], 4.0 * s["width"], s["width"])),
    "embedding": _rows(lambda s: (0, 2.0 * s["width"], 2)),
    "placement": _rows(lambda s: (0, 3.0 * s["width"], 1)),
    "cross_entropy": _rows(lambda s: (6.0 * s["vocabulary"], 3.0 * s["vocabulary"], s["vocabulary"])),
    "optimizer_step": Operator(("elements",), lambda s: Work(12.0 * s["elements"], 7.0 * s["elements"])),
    "transfer": _link(),
    "all_reduce": _link(),
    "all_gather": _link(),
    "reduce_scatter": _link(),
}
#: Operators between ranks; their seconds stand in the forward's column.
LINKS = ("transfer", "all_reduce", "all_gather", "reduce_scatter")


def link_bytes(operator: str, shape: Shape) -> float:
    """Bytes that each rank sends for a collective of ``bytes`` by the ring algorithm; a transfer sends them once."""
    group = shape.get("group", 2)
    share = {"transfer": 1.0, "all_reduce": 2.0 * (group - 1) / group}.get(operator, (group - 1) / group)
    return share * shape["bytes"]


def runs_of(tokens: tuple[int, ...]) -> Mapping[int, int]:
    """Instances of each size, empty ones left out."""
    return Counter(size for size in tokens if size)


def is_reordered(tokens: tuple[int, ...]) -> bool:
    """Whether attention brings the rows into another order and back (see ``models.packing``)."""
    return any(a > b for a, b in pairwise(tokens))


def spread_sizes(size: int, instances: int, spread: int) -> tuple[int, ...]:
    """Sizes that stand for packed instances of a mean ``size``: equal, or with ``spread`` from half to 1.5 times it.

    Those lie in an order that is neither ascending nor descending.
    """
    if not spread or instances < 2:
        return (size,) * instances
    sizes = [max(1, round(size * (0.5 + (i + 0.5) / instances))) for i in range(instances)]
    return tuple(sizes[1::2] + sizes[::2])


def is_composed(layer: Layer) -> bool:
    """Whether ``calls`` knows what this layer is made of."""
    return layer.kind in _LAYERS


def calls(layer: Layer, sizes: Sizes, tensor_parallel: int = 1, *, loss: bool = False) -> list[Call]:
    """The operators of one layer's forward on one of ``tensor_parallel`` ranks, in their order.

    Projections are cut by columns, then by rows, heads among the ranks: each block adds two all-reduces, the merger
    one, embeddings of tokens one of the forward and the head one of the backward. Every rank does all norms. With
    ``loss`` the cross-entropy follows the head. Raises ValueError where heads do not divide by the ranks.
    """
    o = layer.options
    if tensor_parallel > 1 and (o.get("heads", tensor_parallel) % tensor_parallel):
        raise ValueError(
            f"a layer has {o['heads']} heads, which do not divide among {tensor_parallel} tensor-parallel ranks"
        )
    found = _LAYERS[layer.kind](o, sizes, tensor_parallel)
    if loss:
        vocabulary = -(-o["vocabulary"] // tensor_parallel)
        found.append(Call("cross_entropy", {"vocabulary": vocabulary, "rows": sum(sizes.tokens)}))
    return found


def _block(o: Shape, sizes: Sizes, tp: int, *, encoder: bool) -> list[Call]:
    n, hidden, head_dim = sum(sizes.tokens), o["hidden"], o["head_dim"]
    heads, groups, inner = o["heads"] // tp, max(1, o["kv_heads"] // tp), o["ffn"] // tp
    norm = Call("layer_norm" if encoder else "rms_norm", {"width": hidden, "rows": n})
    added = Call("residual", {"width": hidden, "rows": n})
    bias = int(encoder)
    projected = (heads + 2 * groups) * head_dim

    def linear(inputs: int, outputs: int) -> Call:
        return Call("linear", {"inputs": inputs, "outputs": outputs, "bias": bias, "rows": n})

    found = [norm, linear(hidden, projected)]
    if not encoder:
        found.append(Call("rotary", {"heads": heads + groups, "head_dim": head_dim, "rows": n}))
    pieces = windows(sizes.tokens, o.get("window"))
    runs = runs_of(pieces)
    attended = {"heads": heads, "kv_heads": groups, "head_dim": head_dim}
    if len(runs) > 1 or is_reordered(pieces):
        found.append(Call("packing", attended | {"runs": len(runs), "rows": n}))
    attended["causal"] = 1 - bias
    found += [Call("attention", attended | {"size": size, "instances": count}) for size, count in runs.items()]
    found += [linear(heads * head_dim, hidden), added, norm]
    activation = Call("silu_gate" if o["gated"] else "gelu", {"width": inner, "rows": n})
    found += [linear(hidden, inner * (1 + o["gated"])), activation, linear(inner, hidden), added]
    return found + 2 * _sum(tp, n * hidden)


def _patches(o: Shape, sizes: Sizes, _: int) -> list[Call]:
    shape = {"inputs": o["patch"] ** 2 * o["channels"], "hidden": o["hidden"], "side": o["side"]}
    return [Call("patch_embedding", shape | {"rows": sum(sizes.tokens)})]


def _merger(o: Shape, sizes: Sizes, tp: int) -> list[Call]:
    n, m, hidden, output = sum(sizes.tokens), sum(sizes.merged), o["hidden"], o["output"]
    wide, inner = o["merge"] * hidden, -(-inner_of(o) // tp)
    found = [
        Call("layer_norm", {"width": hidden, "rows": n}),
        Call("gather", {"width": hidden, "rows": n}),
        Call("linear", {"inputs": wide, "outputs": inner, "bias": 1, "rows": m}),
        Call("tanh", {"width": inner, "rows": m}),
        Call("linear", {"inputs": inner, "outputs": output, "bias": 1, "rows": m}),
    ]
    return found + _sum(tp, m * output, "F") + _sum(tp, n * hidden, "B")


def _sum(tp: int, elements: int, passes: str = "FB") -> list[Call]:
    return [Call("all_reduce", {"group": tp, "elements": elements}, passes)] if tp > 1 else []


def _tokens(o: Shape, sizes: Sizes, tp: int) -> list[Call]:
    n = sum(sizes.tokens)
    placed = Call("placement", {"width": o["hidden"], "rows": n})
    found = [Call("embedding", {"vocabulary": -(-o["vocabulary"] // tp), "width": o["hidden"], "rows": n})]
    found += _sum(tp, n * o["hidden"], "F")
    return found + [placed] * sum(name.startswith(PLACEHOLDER) for name in o)


def _head(o: Shape, sizes: Sizes, tp: int) -> list[Call]:
    n, outputs = sum(sizes.tokens), -(-o["vocabulary"] // tp)
    found = [
        Call("rms_norm", {"width": o["hidden"], "rows": n}),
        Call("linear", {"inputs": o["hidden"], "outputs": outputs, "bias": 0, "rows": n}),
    ]
    return found + _sum(tp, n * o["hidden"], "B")


def _linear_call(inputs: int, outputs: int, rows: int) -> Call:
    return Call("linear", {"inputs": inputs, "outputs": outputs, "bias": 1, "rows": rows})


def _video_embedding(o: Shape, sizes: Sizes, _: int) -> list[Call]:
    n, hidden, clips = sum(sizes.tokens), o["hidden"], len(sizes)
    shape = {"inputs": o["numbers"], "hidden": hidden, "side": o["side"], "frames": o["frames"], "rows": n}
    timestep = ((TIMESTEP, hidden), (hidden, hidden), (hidden, MODULATIONS * hidden))
    return [
        Call("latent_embedding", shape),
        _linear_call(o["text"], hidden, sum(sizes.merged)),
        *(_linear_call(inputs, outputs, clips) for inputs, outputs in timestep),
    ]


def _diffusion_block(o: Shape, sizes: Sizes, tp: int) -> list[Call]:
    n, m, hidden, head_dim = sum(sizes.tokens), sum(sizes.merged), o["hidden"], o["head_dim"]
    queries, keys = o["heads"] // tp * head_dim, max(1, o["kv_heads"] // tp) * head_dim
    modulate, gate = Call("modulate", {"width": hidden, "rows": n}), Call("gate", {"width": hidden, "rows": n})
    plain = _block(o, sizes, tp, encoder=True)
    first, second = (number for number, call in enumerate(plain) if call.operator == "residual")
    pairs = Counter((size, text) for size, text in zip(sizes.tokens, sizes.merged, strict=True) if size and text)
    attended = {"heads": o["heads"] // tp, "kv_heads": max(1, o["kv_heads"] // tp), "head_dim": head_dim}
    cross = [
        _linear_call(hidden, queries, n),
        _linear_call(hidden, 2 * keys, m),
        *(Call("cross_attention", attended | {"rows": size * count, "text": text})
          for (size, text), count in pairs.items()),
        _linear_call(queries, hidden, n),
        plain[first],
        *_sum(tp, n * hidden),
        *_sum(tp, m * hidden, "B"),
    ]  # fmt: skip
    # The plain block's norms are modulated and its results gated; the attention to the text stands between them.
    return [modulate, *plain[1:first], gate, *cross, modulate, *plain[first + 2 : second], gate, *plain[second + 1 :]]


def _video_output(o: Shape, sizes: Sizes, _: int) -> list[Call]:
    n = sum(sizes.tokens)
    return [Call("modulate", {"width": o["hidden"], "rows": n}), _linear_call(o["hidden"], o["numbers"], n)]


_LAYERS: Mapping[str, Callable[[Shape, Sizes, int], list[Call]]] = {
    "patch_embedding": _patches,
    "encoder_block": lambda o, sizes, tp: _block(o, sizes, tp, encoder=True),
    "merger": _merger,
    "token_embedding": _tokens,
    "decoder_block": lambda o, sizes, tp: _block(o, sizes, tp, encoder=False),
    "head": _head,
    "video_embedding": _video_embedding,
    "diffusion_block": _diffusion_block,
    "video_output": _video_output,
    "text_output": lambda o, sizes, _: [Call("rms_norm", {"width": o["hidden"], "rows": sum(sizes.tokens)})],
}
#: Kinds of layers that ``calls`` knows.
LAYER_KINDS = tuple(_LAYERS)
