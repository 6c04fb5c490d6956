"""Parameter counts of layers, whole or one tensor-parallel device's share; needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from ds_dip.models.kinds import MODULATIONS, TIMESTEP, inner_of
from ds_dip.models.spec import Layer, Model

Options = Mapping[str, int]


def parameters(layer: Layer, tensor_parallel: int = 1) -> int:
    """The number of parameters of a layer that one of ``tensor_parallel`` devices holds (see ``models.kinds``).

    Matrices are cut by columns or by rows, embeddings and head by the vocabulary; every device holds all of norms,
    positions, modulations, of biases behind a cut by rows, and of an image or latent embedding. Fewer key/value groups
    than devices are held more than once. A layer whose option ``weights`` tells their number has the share of them that
    its kind would have. A layer of another kind is never cut, and without that option counts as a square matrix as wide
    as its output, as its operations do.
    """
    if layer.kind in _PARAMETERS:
        own = _PARAMETERS[layer.kind](layer.options, tensor_parallel)
        if "weights" not in layer.options:
            return own
        return round(layer.options["weights"] * own / _PARAMETERS[layer.kind](layer.options, 1))
    width = max((prod(d for d in spec.dims if isinstance(d, int)) for spec in layer.output), default=1)
    return int(layer.options.get("weights", width * width))


def module_parameters(model: Model, module: str) -> int:
    """The number of parameters of a module."""
    return sum(map(parameters, model.module(module).layers))


def groups_of(o: Options, tp: int) -> int:
    """Key/value groups on one of ``tp`` devices."""
    return max(1, o["kv_heads"] // tp)


def _share(whole: int, tp: int) -> int:
    return -(-whole // tp)


def attention_weights(o: Options, tp: int) -> int:
    """Weights of the four projections of an attention on one of ``tp`` devices."""
    return o["hidden"] * (2 * _share(o["heads"], tp) + 2 * groups_of(o, tp)) * o["head_dim"]


def feed_forward_weights(o: Options, tp: int) -> int:
    """Weights of a feed-forward on one of ``tp`` devices."""
    return o["hidden"] * (2 + o["gated"]) * _share(o["ffn"], tp)


def _attention_biases(o: Options, tp: int) -> int:
    return (_share(o["heads"], tp) + 2 * groups_of(o, tp)) * o["head_dim"] + o["hidden"]


def _feed_forward_biases(o: Options, tp: int) -> int:
    return (1 + o["gated"]) * _share(o["ffn"], tp) + o["hidden"]


def _encoder_block(o: Options, tp: int) -> int:
    matrices = attention_weights(o, tp) + feed_forward_weights(o, tp)
    return matrices + _attention_biases(o, tp) + _feed_forward_biases(o, tp) + 4 * o["hidden"]


def _merger(o: Options, tp: int) -> int:
    inner = _share(inner_of(o), tp)
    return (o["merge"] * o["hidden"] + 1 + o["output"]) * inner + o["output"] + 2 * o["hidden"]


def _video_embedding(o: Options, _: int) -> int:
    timestep = TIMESTEP + 1 + o["hidden"] + 1
    modulation = MODULATIONS * (o["hidden"] + 1)
    return (o["numbers"] + 1 + 2 * o["side"] + o["frames"] + o["text"] + 1 + timestep + modulation) * o["hidden"]


def _diffusion_block(o: Options, tp: int) -> int:
    matrices = 2 * attention_weights(o, tp) + feed_forward_weights(o, tp)
    return matrices + 2 * _attention_biases(o, tp) + _feed_forward_biases(o, tp) + MODULATIONS * o["hidden"]


_PARAMETERS: Mapping[str, Callable[[Options, int], int]] = {
    "patch_embedding": lambda o, _: (o["patch"] ** 2 * o["channels"] + 1 + 2 * o["side"]) * o["hidden"],
    "encoder_block": _encoder_block,
    "merger": _merger,
    "token_embedding": lambda o, tp: _share(o["vocabulary"], tp) * o["hidden"],
    "decoder_block": lambda o, tp: attention_weights(o, tp) + feed_forward_weights(o, tp) + 2 * o["hidden"],
    "head": lambda o, tp: o["hidden"] * _share(o["vocabulary"], tp) + o["hidden"],
    "text_output": lambda o, _: o["hidden"],
    "video_embedding": _video_embedding,
    "diffusion_block": _diffusion_block,
    "video_output": lambda o, _: (o["hidden"] + 1) * o["numbers"] + 2 * o["hidden"],
}
