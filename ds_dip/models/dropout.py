"""Dropout whose mask does not depend on the plan."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from ds_dip.models.context import Context


class Dropout(nn.Module):
    """Zeroes entries with probability ``p`` and scales the rest by 1/(1-p), in training only.

    An instance's mask follows from the run's seed, the step, the instance, the layer that runs and
    the place of this module in it (``key``, which DIPModule sets): samples may be placed in any
    microbatch, in any order, and recomputed, and get the same mask, and two layers that share this
    module get two. Called with the layer's ``Context``.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"p is {p}, expected a probability of at least 0 and below 1")
        self.p, self.key = p, ""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """``x`` [rows, …]: the rows of the context's instances, by their tokens or by what they merge to."""
        if not self.training or self.p == 0.0:
            return x
        sizes = context.sizes.tokens if len(x) == sum(context.sizes.tokens) else context.sizes.merged
        if len(x) != sum(sizes) or len(sizes) != len(context.instances):
            raise ValueError(
                f"dropout {self.key!r} of layer {context.layer!r} got {len(x)} rows, and the instances have "
                f"{sum(context.sizes.tokens)} tokens and merge to {sum(context.sizes.merged)}; call it with rows of "
                "whole instances"
            )
        parts = [self._mask(context, name, size, x) for name, size in zip(context.instances, sizes, strict=True)]
        return x * torch.cat(parts) / (1.0 - self.p)

    def _mask(self, context: Context, instance: str, rows: int, x: Tensor) -> Tensor:
        name = f"{context.seed}/{context.step}/{instance}/{context.layer}/{self.key}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
        generator = torch.Generator(device=x.device).manual_seed(seed)
        return torch.rand(rows, *x.shape[1:], generator=generator, device=x.device) >= self.p
