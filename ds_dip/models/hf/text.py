"""Language models of transformers: decoders with rotary positions, by themselves or behind an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ds_dip.models import kinds
from ds_dip.models.context import Context
from ds_dip.models.hf.parts import Chain, Family, Part, Shared
from ds_dip.models.hf.shell import Shell, SplitError
from ds_dip.models.layers import Upstream

#: Kinds of rotary positions that depend on nothing but a token's place.
_FIXED_ROTARY = ("default", "linear", "yarn", "llama3")


class Tokens(nn.Module):
    """Tokens [N] to [N, hidden], with upstream outputs where their placeholder tokens stand."""

    def __init__(self, table: nn.Module, placeholders: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.table, self.placeholders = table, dict(placeholders)

    def forward(self, x: Upstream, context: Context) -> Tensor:
        """Embed ``tokens``; the i-th placeholder of an upstream module takes the i-th row of its output."""
        tokens = context.fields["tokens"]
        embedded: Tensor = self.table(tokens)
        for module, ids in self.placeholders.items():
            rows = x[module]
            assert isinstance(rows, Tensor)
            places = torch.isin(tokens, torch.tensor(ids, device=tokens.device)).nonzero().squeeze(1)
            if len(places) != len(rows):
                raise ValueError(
                    f"module {module!r} gave {len(rows)} rows for {len(places)} placeholder tokens {list(ids)}; make "
                    "the text with the processor that made the module's inputs"
                )
            embedded = embedded.index_copy(0, places, rows.to(embedded.dtype))
        return embedded

    def logits(self, x: Tensor, context: Context) -> Tensor:
        """Logits [N, vocabulary] of a head that has the same weights."""
        return functional.linear(x, self.table.weight)  # type: ignore[arg-type]  # an embedding's


class Block(nn.Module):
    """A decoder's layer, [N, hidden] to [N, hidden], causal within each instance.

    Positions count from the instance's start, or are those of ``field`` [N, 3].
    """

    selects_operators = True
    rotary: Any

    def __init__(self, block: nn.Module, rotary: nn.Module, field: str | None) -> None:
        super().__init__()
        self.block, self.field = block, field
        self.__dict__["rotary"] = rotary  # not a child: its frequencies stay in fp32 whatever the model is cast to

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The library's layer on one packed row of tokens."""
        if self.field is None:
            positions = _places(context.sizes.tokens, x.device)[None]
        else:
            positions = context.fields[self.field].t()[:, None]
        turned = self.rotary(x[None], positions)
        output: Tensor = self.block(
            x[None], attention_mask=None, position_embeddings=turned, packed=context.sizes.tokens
        )
        return output[0]


class Norm(nn.Module):
    """The norm before a head that has the embedding's weights."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Norm every row."""
        output: Tensor = self.norm(x)
        return output


class Head(nn.Module):
    """Final norm and logits, [N, hidden] to [N, vocabulary]."""

    def __init__(self, norm: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.norm, self.head = norm, head

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Logits of the next token at every row."""
        output: Tensor = self.head(self.norm(x))
        return output


@lru_cache(maxsize=64)
def _places(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.cat([torch.arange(size) for size in (0, *tokens)]).to(device)


def width_of(config: Any) -> kinds.Width:
    """Sizes of a decoder's layers."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return kinds.Width(
        config.hidden_size, heads, config.num_key_value_heads, head_dim, config.intermediate_size, gated=True
    )


def language(
    shell: Shell, path: str, config: Any, placeholders: Mapping[str, tuple[int, ...]], positions: str | None = None
) -> Chain:
    """The language model at a path, which has ``embed_tokens``, ``layers``, ``norm`` and ``rotary_emb``.

    ``placeholders`` are the tokens that stand for a row of each upstream module; ``positions`` the field of positions
    in three directions. Raises SplitError for attention that is not over whole samples, and positions that depend on
    the longest of them.
    """
    _check(path, config)
    width, depth, theta = width_of(config), config.num_hidden_layers, int(config.rope_parameters["rope_theta"])
    first = kinds.token_embedding(width.hidden, config.vocab_size, {name: ids[0] for name, ids in placeholders.items()})
    block = kinds.decoder_block(width, depth, theta)
    if positions is not None:
        block = type(block)(block.kind, block.output, (positions,), block.options)
    table = {"table": f"{path}.embed_tokens"}
    settings: Mapping[str, Any] = {"placeholders": dict(placeholders)}
    head = kinds.head(width.hidden, config.vocab_size)
    if "lm_head.weight" in (shell.model.all_tied_weights_keys or ()):
        weights = ("table.weight",)
        ends = [
            Part(kinds.text_output(width.hidden), Norm, {"norm": f"{path}.norm"}),
            Part(head, Tokens, table, settings=settings, shared=Shared("tokens", weights, Tokens.logits)),
        ]
        shared = Shared("tokens", weights, Tokens.forward)
    else:
        ends, shared = [Part(head, Head, {"norm": f"{path}.norm", "head": "lm_head"})], None
    blocks = (
        Part(block, Block, {"block": f"{path}.layers.{n}"}, {"rotary": f"{path}.rotary_emb"}, {"field": positions})
        for n in range(depth)
    )
    return Chain("language", (Part(first, Tokens, table, settings=settings, shared=shared), *blocks, *ends),
                 tuple(placeholders))  # fmt: skip


def _check(path: str, config: Any) -> None:
    kinds_of = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"})
    window = getattr(config, "sliding_window", None)
    if kinds_of or (window is not None and getattr(config, "use_sliding_window", True)):
        raise SplitError(
            f"{path} has {kinds_of[0] if kinds_of else 'sliding_attention'} (sliding_window {window}), and samples are "
            "packed for full attention; use a model whose layers all attend to the whole sample"
        )
    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in _FIXED_ROTARY:
        raise SplitError(
            f"{path}.rotary_emb is of type {kind!r}, which depends on the longest sample at hand; use one of "
            f"{', '.join(_FIXED_ROTARY)}"
        )


def split(shell: Shell) -> Family:
    """A decoder by itself: Llama, Qwen2, Qwen3, Mistral without sliding windows."""
    return Family((language(shell, "model", shell.model.config, {}),))
