"""A cheap function before a projection, run again in the backward instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Projected(torch.autograd.Function):
    """``linear(function(x), weight, bias)`` [N, outputs] that keeps x alone.

    One node for both, as torch's checkpoint takes half a millisecond a use. ``parameters`` are those of ``function``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[[Tensor], Tensor],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        """Nothing in here is in a graph."""
        ctx.function, ctx.parameters = function, parameters
        ctx.save_for_backward(x, weight)
        return functional.linear(function(x), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Run the function again, and its backward, within this node."""
        x, weight = ctx.saved_tensors
        _, of_x, of_weight, of_bias, *of_parameters = ctx.needs_input_grad
        wanted = [parameter for parameter, needed in zip(ctx.parameters, of_parameters, strict=True) if needed]
        with torch.enable_grad():
            x = x.detach().requires_grad_(of_x)
            inner = ctx.function(x)
        weights = gradient.t() @ inner.detach() if of_weight else None
        biases = gradient.sum(0) if of_bias else None
        inputs = [x, *wanted] if of_x else wanted
        found: list[Tensor | None] = []
        if inputs:
            root = torch.autograd.graph.get_gradient_edge(inner)
            del inner
            found = list(torch.autograd.grad([root], inputs, [gradient @ weight]))
        of_input = found.pop(0) if of_x else None
        rest = [found.pop(0) if needed else None for needed in of_parameters]
        return None, of_input, weights, biases, *rest
