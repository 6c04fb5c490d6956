"""The loss of a language model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ds_dip.models.context import Context
from ds_dip.models.kinds import IGNORED


def token_cross_entropy(logits: Tensor, context: Context) -> Tensor:
    """Sum of the cross entropies of the supervised tokens, a scalar.

    ``logits`` are [N, vocabulary]; ``context.fields["labels"]`` [N] holds the next token of every row, or -100 where
    it is not supervised. Computed in fp32 (fp64 stays fp64); 0 with zero gradients where nothing is supervised.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return functional.cross_entropy(wide, context.fields["labels"], ignore_index=IGNORED, reduction="sum")
