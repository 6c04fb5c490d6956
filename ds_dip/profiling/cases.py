"""Every operator of a latency table as torch runs it in our layers, on random inputs of a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ds_dip.costs.layers import Wanted
from ds_dip.costs.operators import Shape
from ds_dip.models.build import LayerFactory
from ds_dip.models.context import Context
from ds_dip.models.diffusion import gated, modulate, per_row
from ds_dip.models.kinds import PLACEHOLDER
from ds_dip.models.loss import token_cross_entropy
from ds_dip.models.norms import layer_norm, rms_norm
from ds_dip.models.packing import attention, cross_attention, pack, rotary, rotate
from ds_dip.models.spec import Sizes

#: Tensors that take part in a backward from a case's outputs.
Outputs = list[Tensor]


@dataclass(frozen=True, slots=True)
class Place:
    """Where and in what tensors live."""

    device: torch.device
    dtype: torch.dtype

    def random(self, *dims: int, gradient: bool = True) -> Tensor:
        """A leaf of normal numbers."""
        values = torch.randn(*dims, device=self.device, dtype=torch.float32).to(self.dtype)
        return values.requires_grad_(gradient)

    def whole(self, below: int, count: int) -> Tensor:
        """Whole numbers from 0."""
        return torch.randint(below, (count,), device=self.device)

    def module(self, module: nn.Module) -> nn.Module:
        """A module of weights, put here."""
        return module.to(device=self.device, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class Case:
    """One copy of an operator: ``run`` on its own ``inputs`` (leaves that want gradients) with its own ``weights``."""

    run: Callable[[], Outputs]
    inputs: Sequence[Tensor]
    weights: Sequence[nn.Parameter] = ()


def _module_on_rows(make: Callable[[], nn.Module], width: int, rows: int, place: Place) -> Case:
    module, x = place.module(make()), place.random(rows, width)
    return Case(lambda: [module(x)], [x], list(module.parameters()))


def _linear(s: Shape, place: Place) -> Case:
    make = lambda: nn.Linear(s["inputs"], s["outputs"], bias=bool(s["bias"]))  # noqa: E731  # made when it is put
    return _module_on_rows(make, s["inputs"], s["rows"], place)


def _projected(s: Shape, rows: int, place: Place) -> tuple[Tensor, list[int]]:
    """What attention's projection gives, in heads, and how they split into queries, keys and values."""
    parts = [s["heads"], s["kv_heads"], s["kv_heads"]]
    return place.random(rows, sum(parts), s["head_dim"]), parts


def _attention(s: Shape, place: Place) -> Case:
    tokens = (s["size"],) * s["instances"]
    x, parts = _projected(s, sum(tokens), place)

    def run() -> Outputs:
        query, key, value = torch.split(x, parts, dim=1)
        return [attention(query, key, value, tokens, causal=bool(s["causal"])).flatten(1)]

    return Case(run, [x])


def _packing(s: Shape, place: Place) -> Case:
    """What attention does around its runs: rows into the runs' order, one split, the runs together, rows back."""
    runs = min(s["runs"], s["rows"])
    # Different sizes, none ascending, whose sum is the rows.
    sizes = [s["rows"] // runs + (i - runs // 2 if s["rows"] // runs > runs else 0) for i in range(runs)]
    sizes[-1] += s["rows"] - sum(sizes)
    packing = pack(tuple(sizes[::-1]), place.device)
    x, parts = _projected(s, s["rows"], place)
    rows = [instances * size for instances, size in packing.runs]

    def run() -> Outputs:
        turned = list(torch.split(x, parts, dim=1))
        if packing.order is not None:
            turned = [t.index_select(0, packing.order) for t in turned]
        query, key, value = (torch.split(t, rows) for t in turned)
        output = torch.cat(query)
        if packing.inverse is not None:
            output = output.index_select(0, packing.inverse)
        return [output, *key, *value]

    return Case(run, [x])


def _rotary(s: Shape, place: Place) -> Case:
    tokens, x = (s["rows"],), place.random(s["rows"], s["heads"], s["head_dim"])
    return Case(lambda: [rotate(x, rotary(tokens, s["head_dim"], 10000, x.dtype, x.device))], [x])


def _silu_gate(s: Shape, place: Place) -> Case:
    x = place.random(s["rows"], 2 * s["width"])

    def run() -> Outputs:
        gate, up = x.chunk(2, dim=-1)
        return [functional.silu(gate) * up]

    return Case(run, [x])


def _pointwise(function: Callable[[Tensor], Tensor]) -> Callable[[Shape, Place], Case]:
    def make(s: Shape, place: Place) -> Case:
        x = place.random(s["rows"], s["width"])
        return Case(lambda: [function(x)], [x])

    return make


def _residual(s: Shape, place: Place) -> Case:
    """The stream is read twice, so its backward adds two gradients."""
    x, added = place.random(s["rows"], s["width"]), place.random(s["rows"], s["width"])

    def run() -> Outputs:
        stream = x.view(x.shape)
        return [stream + added, stream.view(x.shape)]

    return Case(run, [x, added])


def _gather(s: Shape, place: Place) -> Case:
    x = place.random(s["rows"], s["width"])
    order = torch.randperm(s["rows"], device=place.device)
    return Case(lambda: [x.index_select(0, order).view(1, -1) / 2], [x])


def _patch_embedding(s: Shape, place: Place) -> Case:
    project = place.module(nn.Linear(s["inputs"], s["hidden"]))
    rows, columns = (nn.Parameter(place.random(s["side"], s["hidden"])) for _ in range(2))
    pixels = place.random(s["rows"], s["inputs"], gradient=False)
    at, of = place.whole(s["side"], s["rows"]), place.whole(s["side"], s["rows"])

    def run() -> Outputs:
        return [project(pixels) + functional.embedding(at, rows) + functional.embedding(of, columns)]

    return Case(run, [], [*project.parameters(), rows, columns])


def _latent_embedding(s: Shape, place: Place) -> Case:
    project = place.module(nn.Linear(s["inputs"], s["hidden"]))
    sides = [side for side in (s["side"], s["side"], s["frames"]) if side]  # none where positions are not learned
    positions = [nn.Parameter(place.random(side, s["hidden"])) for side in sides]
    latents, noise = (place.random(s["rows"], s["inputs"], gradient=False) for _ in range(2))
    places = [place.whole(side, s["rows"]) for side in sides]
    time = torch.full((s["rows"], 1), 0.5, device=place.device, dtype=place.dtype)

    def run() -> Outputs:
        embedded = project(torch.lerp(latents, noise, time))
        for at, of in zip(places, positions, strict=True):
            embedded = embedded + functional.embedding(at, of)
        return [embedded]

    return Case(run, [], [*project.parameters(), *positions])


def _cross_attention(s: Shape, place: Place) -> Case:
    query = place.random(s["rows"], s["heads"], s["head_dim"])
    pair = place.random(s["text"], 2 * s["kv_heads"], s["head_dim"])

    def run() -> Outputs:
        key, value = pair.chunk(2, dim=1)
        return [cross_attention(query, key, value, Sizes((s["rows"],), (s["text"],))).flatten(1)]

    return Case(run, [query, pair])


def _modulate(s: Shape, place: Place) -> Case:
    x, shift, scale = (place.random(rows, s["width"]) for rows in (s["rows"], 1, 1))
    return Case(lambda: [modulate(x, *(per_row(own, (s["rows"],)) for own in (shift, scale)))], [x, shift, scale])


def _gate(s: Shape, place: Place) -> Case:
    """As a residual, what is added multiplied by a clip's gate."""
    x, added, gate = (place.random(rows, s["width"]) for rows in (s["rows"], s["rows"], 1))

    def run() -> Outputs:
        stream = x.view(x.shape)
        return [stream + gated(added, gate, (s["rows"],)), stream.view(x.shape)]

    return Case(run, [x, added, gate])


def _embedding(s: Shape, place: Place) -> Case:
    weight = nn.Parameter(place.random(s["vocabulary"], s["width"]))
    tokens = place.whole(s["vocabulary"], s["rows"])
    return Case(lambda: [functional.embedding(tokens, weight)], [], [weight])


def _placement(s: Shape, place: Place) -> Case:
    """A quarter of the rows comes from upstream."""
    placed = s["rows"] // 4
    x, rows = place.random(s["rows"], s["width"]), place.random(placed, s["width"])
    tokens = torch.ones(s["rows"], dtype=torch.int64, device=place.device)
    tokens[torch.randperm(s["rows"], device=place.device)[:placed]] = 0

    def run() -> Outputs:
        return [x.index_copy(0, (tokens == 0).nonzero().squeeze(1), rows)]

    return Case(run, [x, rows])


def _cross_entropy(s: Shape, place: Place) -> Case:
    logits = place.random(s["rows"], s["vocabulary"])
    context = Context(Sizes((s["rows"],), (s["rows"],)), {"labels": place.whole(s["vocabulary"], s["rows"])})
    return Case(lambda: [token_cross_entropy(logits, context)], [logits])


CASES: Mapping[str, Callable[[Shape, Place], Case]] = {
    "linear": _linear,
    "attention": _attention,
    "packing": _packing,
    "rotary": _rotary,
    "layer_norm": lambda s, place: _module_on_rows(lambda: layer_norm(s["width"]), s["width"], s["rows"], place),
    "rms_norm": lambda s, place: _module_on_rows(lambda: rms_norm(s["width"]), s["width"], s["rows"], place),
    "silu_gate": _silu_gate,
    "gelu": _pointwise(lambda x: functional.gelu(x, approximate="tanh")),
    "tanh": _pointwise(torch.tanh),
    "residual": _residual,
    "gather": _gather,
    "patch_embedding": _patch_embedding,
    "latent_embedding": _latent_embedding,
    "cross_attention": _cross_attention,
    "modulate": _modulate,
    "gate": _gate,
    "embedding": _embedding,
    "placement": _placement,
    "cross_entropy": _cross_entropy,
}


def layer_case(wanted: Wanted, sizes: Sizes, place: Place, *, recompute: bool = False) -> Case:
    """A whole layer, with the loss where it follows; ``recompute`` runs its forward again in the backward."""
    layer = wanted.layer
    module = place.module(LayerFactory(layer, 0, frozen=False)())
    rows, fields, inputs = sum(sizes.tokens), dict[str, Tensor](), list[Tensor]()
    x: Tensor | dict[str, Tensor] = {}
    if layer.kind == "patch_embedding":
        patch = layer.options["patch"] ** 2 * layer.options["channels"]
        fields[layer.fields[0]] = place.random(rows, patch, gradient=False)
    elif layer.kind == "token_embedding":
        upstream = _upstream(layer.options, rows, fields, place)
        x, inputs = upstream, list(upstream.values())
    else:
        x = place.random(rows, layer.options["hidden"])
        inputs = [x]
    if wanted.loss:
        fields["labels"] = place.whole(layer.options["vocabulary"], rows)
    context = Context(sizes, fields)

    def run() -> Outputs:
        if recompute:
            output = torch.utils.checkpoint.checkpoint(module, x, context, use_reentrant=False)
        else:
            output = module(x, context)
        return [token_cross_entropy(output, context) if wanted.loss else output]

    return Case(run, inputs, list(module.parameters()))


def _upstream(options: Shape, rows: int, fields: dict[str, Tensor], place: Place) -> dict[str, Tensor]:
    """Outputs of the modules upstream for a quarter of the tokens, whose placeholders stand in ``fields``."""
    placeholders = {name.removeprefix(PLACEHOLDER): t for name, t in options.items() if name.startswith(PLACEHOLDER)}
    tokens = torch.full((rows,), next(t for t in range(rows + 2) if t not in placeholders.values()))
    places = torch.randperm(rows)
    found = {}
    for number, (module, token) in enumerate(placeholders.items()):
        placed = rows // 4 // len(placeholders)
        tokens[places[number * placed : (number + 1) * placed]] = token
        found[module] = place.random(placed, options["hidden"])
    fields["tokens"] = tokens.to(place.device)
    return found
