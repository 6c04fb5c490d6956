"""Encoders of prompts, of transformers: T5 and UMT5. An instance is a prompt; the field is ``tokens``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.t5.modeling_t5 import T5Attention

from ds_dip.models import kinds
from ds_dip.models.context import Context
from ds_dip.models.hf.parts import Chain, Family, Part
from ds_dip.models.hf.shell import Shell, SplitError
from ds_dip.models.hf.text import Norm, Tokens
from ds_dip.models.spec import Layer, TensorSpec


class OwnPositions(nn.Module):
    """A layer of UMT5's encoder, [N, hidden] to [N, hidden], over each prompt by itself."""

    selects_operators = True

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The library's layer, prompt by prompt: its positions are relative to all of one."""
        return torch.cat([self.block(own[None])[0] for own in torch.split(x, list(context.sizes.tokens))])


class SharedPositions(nn.Module):
    """A layer of T5's encoder over each prompt by itself, ([N, hidden], table) to the same.

    The first layer has the table [buckets, heads] of relative positions that all use. It travels with the rows, so
    that its gradients come back along them; the ``first`` layer takes rows alone.
    """

    selects_operators = True

    def __init__(self, block: nn.Module, first: bool, distance: int) -> None:
        super().__init__()
        self.block, self.first, self.distance = block, first, distance

    def forward(self, x: Any, context: Context) -> tuple[Tensor, Tensor]:
        """The library's layer, prompt by prompt."""
        if self.first:
            attention: Any = self.block.get_submodule("layer.0.SelfAttention")
            x = x, attention.relative_attention_bias.weight.clone()
        rows, table = x
        sizes = context.sizes.tokens
        biases = {size: self._bias(table, size) for size in sizes}
        found = [
            self.block(own[None], position_bias=biases[size])[0][0]
            for own, size in zip(torch.split(rows, list(sizes)), sizes, strict=True)
        ]
        return torch.cat(found), table

    def _bias(self, table: Tensor, size: int) -> Tensor:
        """What is added to the products of one prompt's tokens [1, heads, size, size]."""
        places = torch.arange(size, device=table.device)
        buckets = T5Attention._relative_position_bucket(
            places[None] - places[:, None], bidirectional=True, num_buckets=len(table), max_distance=self.distance
        )
        return functional.embedding(buckets, table).permute(2, 0, 1)[None]


class PromptNorm(Norm):
    """The norm behind the last layer, which drops the table of positions."""

    def forward(self, x: Any, context: Context) -> Tensor:
        """Norm every row."""
        return super().forward(x[0], context)


def prompts(shell: Shell, names: tuple[str, ...]) -> Family:
    """Embedding, layers and norm of an encoder whose type is one of ``names``; SplitError for another one."""
    config = shell.model.config
    if config.model_type not in names:
        raise SplitError(f"the text encoder is {config.model_type}, and this adapter knows {', '.join(names)} alone")
    hidden = config.d_model
    width = kinds.Width(hidden, config.num_heads, config.num_heads, config.d_kv, config.d_ff, bool(config.is_gated_act))
    block, norm = kinds.encoder_block(width, config.num_layers), kinds.text_output(hidden)
    table = kinds.token_embedding(hidden, config.vocab_size, {})
    first = Part(table, Tokens, {"table": "shared"}, {}, {"placeholders": {}})
    paths = [{"block": f"encoder.block.{n}"} for n in range(config.num_layers)]
    end = {"norm": "encoder.final_layer_norm"}
    if config.model_type == "umt5":
        layers = (Part(block, OwnPositions, own) for own in paths)
        return Family((Chain("text", (first, *layers, Part(norm, Norm, end))),))
    positions = TensorSpec((config.relative_attention_num_buckets, config.num_heads))
    block = Layer(block.kind, (*block.output, positions), (), block.options)
    distance = config.relative_attention_max_distance
    blocks = (
        Part(block, SharedPositions, own, {}, {"first": n == 0, "distance": distance}) for n, own in enumerate(paths)
    )
    return Family((Chain("text", (first, *blocks, Part(norm, PromptNorm, end))),))
