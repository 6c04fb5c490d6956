"""The torch layers of our own models: packed instances of any size, without padding.

Every layer is called as ``layer(x, context)`` (see ``context.Context``). Initial weights are normal with standard
deviation 1/sqrt(inputs); projections that end in the residual stream are smaller by 5 sqrt(2 depth), and embeddings
and the head are small as well, so that a deep model starts nearly as a shallow one and learns from the first steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import sqrt
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ds_dip.models.context import Context
from ds_dip.models.kinds import PLACEHOLDER, inner_of, windows
from ds_dip.models.norms import layer_norm, rms_norm
from ds_dip.models.packing import attention, grid, rotary, rotate, squares
from ds_dip.models.spec import Layer

#: What the first layer of a module gets: outputs per upstream module.
Upstream = Mapping[str, Tensor | tuple[Tensor, ...]]


class Norm(Protocol):
    """What rows go through before a projection; a stage may run it again (see ``Context.projected``)."""

    def __call__(self, x: Tensor) -> Tensor:
        """The rows that a projection takes."""
        ...

    def parameters(self) -> Iterable[Tensor]:
        """The tensors beside ``x`` that want gradients."""


#: Standard deviation of the initial embeddings of tokens and positions.
EMBEDDING = 0.2


def linear(inputs: int, outputs: int, bias: bool, scale: float = 1.0) -> nn.Linear:
    """A linear layer with initial weights of ``scale`` / sqrt(inputs) and biases of 0."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=scale / sqrt(inputs))
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def residual_scale(options: Mapping[str, int]) -> float:
    """Scale of projections that end in the residual stream."""
    return 0.2 / sqrt(2 * options["depth"])


class PatchEmbedding(nn.Module):
    """Patches [N, patch² channels] of square images to [N, hidden], with learned row and column positions."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        o = layer.options
        self.field = layer.fields[0]
        self.side = o["side"]
        # Large beside what the blocks add, for the reason that Merger gives.
        self.project = linear(o["patch"] ** 2 * o["channels"], o["hidden"], bias=True, scale=4.0)
        self.rows = nn.Parameter(torch.randn(o["side"], o["hidden"]) * EMBEDDING)
        self.columns = nn.Parameter(torch.randn(o["side"], o["hidden"]) * EMBEDDING)

    def forward(self, x: Upstream, context: Context) -> Tensor:
        """Embed the patches of ``field``; takes nothing from upstream."""
        pixels = context.fields[self.field].to(self.project.weight.dtype)
        tokens = context.sizes.tokens
        largest = max(tokens, default=0)
        if largest > self.side**2:
            raise ValueError(
                f"an image has {largest} patches, more than the {self.side} x {self.side} of the model's image size; "
                "give smaller images or a model with a larger one"
            )
        rows, columns = grid(tokens, pixels.device)
        embedded: Tensor = self.project(pixels)
        return embedded + functional.embedding(rows, self.rows) + functional.embedding(columns, self.columns)


class Attention(nn.Module):
    """Self-attention within each instance with grouped heads, [N, hidden] to [N, hidden].

    With ``rope_theta`` it is causal and turns queries and keys by their positions; with ``window`` it is within pieces.
    """

    def __init__(self, options: Mapping[str, int], bias: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.head_dim = options["heads"], options["kv_heads"], options["head_dim"]
        self.theta, self.window = options.get("rope_theta"), options.get("window")
        width = self.heads * self.head_dim
        self.project = linear(options["hidden"], width + 2 * self.groups * self.head_dim, bias)
        self.output = linear(width, options["hidden"], bias, residual_scale(options))

    def forward(self, x: Tensor, norm: Norm, context: Context) -> Tensor:
        """Mix the rows of each instance, after ``norm``."""
        tokens = context.sizes.tokens
        projected: Any = context.projected(norm, self.project, x, norm.parameters())
        turned, value = projected.unflatten(-1, (-1, self.head_dim)).split((self.heads + self.groups, self.groups), 1)
        if self.theta is not None:
            turned = rotate(turned, rotary(tokens, self.head_dim, self.theta, x.dtype, x.device))
        query, key = turned.split((self.heads, self.groups), dim=1)
        mixed = attention(query, key, value, windows(tokens, self.window), causal=self.theta is not None)
        output: Tensor = self.output(mixed.flatten(1))
        return output


def _silu_gate(inner: Tensor) -> Tensor:
    gate, up = inner.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _gelu(inner: Tensor) -> Tensor:
    return functional.gelu(inner, approximate="tanh")


class FeedForward(nn.Module):
    """GELU feed-forward, or gated by SiLU, [N, hidden] to [N, hidden]."""

    def __init__(self, options: Mapping[str, int], bias: bool) -> None:
        super().__init__()
        self.gated = bool(options["gated"])
        self.inner = linear(options["hidden"], options["ffn"] * (1 + self.gated), bias)
        self.output = linear(options["ffn"], options["hidden"], bias, residual_scale(options))

    def forward(self, x: Tensor, norm: Norm, context: Context) -> Tensor:
        """Transform every row, after ``norm``."""
        inner = context.projected(norm, self.inner, x, norm.parameters())
        return context.projected(_silu_gate if self.gated else _gelu, self.output, inner)


class Block(nn.Module):
    """Pre-norm transformer block, [N, hidden] to [N, hidden].

    An encoder's has LayerNorm and biases, a decoder's RMSNorm and none.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        encoder = layer.kind == "encoder_block"
        norm = layer_norm if encoder else rms_norm
        self.attention_norm = norm(layer.options["hidden"])
        self.attention = Attention(layer.options, bias=encoder)
        self.feed_forward_norm = norm(layer.options["hidden"])
        self.feed_forward = FeedForward(layer.options, bias=encoder)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Attention, then feed-forward, each added to the residual stream."""
        x = x + self.attention(x, self.attention_norm, context)
        output: Tensor = x + self.feed_forward(x, self.feed_forward_norm, context)
        return output


class Merger(nn.Module):
    """The adapter: every square of ``merge`` patches [N, hidden] becomes one row [M, output].

    Before the language model reads images, gradients push all rows the same way, and rows that have become one
    constant hide the images: learning then starts hundreds of steps later. So patches are divided by ``merge`` (and
    the first projection's weights multiplied), which slows the widest projection down, the activation is odd, which
    adds no mean, and rows start large.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        o = layer.options
        self.merge = o["merge"]
        self.norm = layer_norm(o["hidden"])
        self.inner = linear(o["merge"] * o["hidden"], inner_of(o), bias=True, scale=o["merge"])
        self.output = linear(inner_of(o), o["output"], bias=True, scale=2.0)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Merge neighbours and project them to the language model's width."""
        order = squares(context.sizes.tokens, self.merge, x.device)

        def merge(x: Tensor) -> Tensor:
            normed: Tensor = self.norm(x)
            return normed.index_select(0, order).view(-1, self.merge * x.shape[1]) / self.merge

        inner = context.projected(merge, self.inner, x, self.norm.parameters())
        output: Tensor = self.output(torch.tanh(inner))
        return output


class TokenEmbedding(nn.Module):
    """Tokens [N] to [N, hidden], with upstream outputs where their placeholder tokens stand."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.placeholders = {
            name.removeprefix(PLACEHOLDER): token for name, token in layer.options.items() if PLACEHOLDER in name
        }
        self.weight = nn.Parameter(torch.randn(layer.options["vocabulary"], layer.options["hidden"]) * EMBEDDING)

    def forward(self, x: Upstream, context: Context) -> Tensor:
        """Embed ``tokens``; the i-th placeholder of an upstream module takes the i-th row of its output."""
        tokens = context.fields["tokens"]
        embedded = functional.embedding(tokens, self.weight)
        for module, token in self.placeholders.items():
            rows = x[module]
            if not isinstance(rows, Tensor):
                (rows,) = rows
            places = (tokens == token).nonzero().squeeze(1)
            if len(places) != len(rows):
                raise ValueError(
                    f"module {module!r} gave {len(rows)} rows for {len(places)} placeholder tokens {token}; "
                    "make the dataset's token merge the model's"
                )
            embedded = embedded.index_copy(0, places, rows.to(embedded.dtype))
        return embedded


class TextOutput(nn.Module):
    """Final norm of a text encoder, [N, hidden] to the same."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.norm = rms_norm(layer.options["hidden"])

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The text's last states."""
        output: Tensor = self.norm(x)
        return output


class Head(nn.Module):
    """Final norm and logits, [N, hidden] to [N, vocabulary]."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.norm = rms_norm(layer.options["hidden"])
        self.project = linear(layer.options["hidden"], layer.options["vocabulary"], bias=False, scale=0.3)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Logits of the next token at every row."""
        return context.projected(self.norm, self.project, x, self.norm.parameters())


BUILDERS: Mapping[str, Callable[[Layer], nn.Module]] = {
    "patch_embedding": PatchEmbedding,
    "encoder_block": Block,
    "merger": Merger,
    "token_embedding": TokenEmbedding,
    "decoder_block": Block,
    "head": Head,
    "text_output": TextOutput,
}
