"""Weight gradients that a backward puts off: linear layers keep what they need, and compute them in a later stage.

Whoever waits for a stage's backward waits for the gradients of its inputs alone; those of its weights fill time in
which a rank would wait (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2). Only linear layers put
theirs off: they are most of the work, and only a layer's input and its output's gradient have to stay until then.
Whatever is not a linear layer gets its gradients in the backward, as always.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Linear layers whose backward has run, each with its input and its output's gradient.
PutOff = list[tuple[nn.Linear, Tensor, Tensor]]


class _Thread(threading.local):
    #: Where this thread's forward puts its weight gradients off to, None for not at all.
    into: PutOff | None = None


_thread = _Thread()


def current() -> PutOff | None:
    """What this thread's forward puts off to."""
    return _thread.into


@contextmanager
def putting_off(into: PutOff | None) -> Iterator[None]:
    """Let the linear layers that run inside put their weight gradients off; with None none does."""
    before, _thread.into = _thread.into, into
    try:
        yield
    finally:
        _thread.into = before


def let_put_off(module: nn.Module) -> None:
    """Give every ``nn.Linear`` of a module the ability; parameters, names and hooks stay what they are."""
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = PuttingLinear


def total_of(put_off: PutOff) -> Tensor:
    """A scalar whose backward computes the weight gradients, one layer after the other, and empties ``put_off``.

    They reach the parameters as in any backward, so hooks on their accumulation run.
    """
    total = put_off[0][2].new_zeros(())
    while put_off:
        layer, x, gradient = put_off.pop()
        total = _Weights.apply(total, layer.weight, layer.bias, x, gradient)  # type: ignore[no-untyped-call]
    return total


class PuttingLinear(nn.Linear):
    """A linear layer that can put its weight gradients off; made by ``let_put_off``."""

    def forward(self, input: Tensor) -> Tensor:
        """As ``nn.Linear``."""
        into = _thread.into
        # Without a gradient of the input nobody waits for the backward: there is nothing to put off.
        if into is None or not input.requires_grad or not self.weight.requires_grad or not torch.is_grad_enabled():
            return super().forward(input)
        bias = None if self.bias is None else self.bias.detach()
        output: Tensor = _Linear.apply(input, self.weight.detach(), bias, self, into)  # type: ignore[no-untyped-call]
        return output


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Linear, into: PutOff) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.into = layer, into
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.into.append((ctx.layer, x.detach(), gradient))
        return gradient @ weight, None, None, None, None


class _Weights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, gradient: Tensor) -> Tensor:
        ctx.kept = x, gradient, weight.requires_grad, bias is not None and bias.requires_grad
        return total.clone()

    @staticmethod
    def backward(ctx: Any, total: Tensor) -> tuple[Tensor | None, ...]:
        x, gradient, weighted, biased = ctx.kept
        ctx.kept = None  # a layer's tensors go before the next layer's gradients are computed
        rows = gradient.flatten(0, -2)
        of_weight = rows.t() @ x.flatten(0, -2) if weighted else None
        return total, of_weight, rows.sum(0) if biased else None, None, None
