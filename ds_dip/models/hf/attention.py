"""Attention over packed rows for transformers' layers, through the library's own registry of attention functions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ds_dip.models.packing import attention

#: Name of the function in the registry.
PACKED = "ds_dip"
#: The same where a layer hands cumulative lengths over only to what it takes for flash attention.
PACKED_LENGTHS = "ds_dip_flash"


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    packed: tuple[int, ...] | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention within each of the ``packed`` instances: query [1, H, N, d], key, value [1, G, N, d] to [1, N, H, d].

    ``cu_seq_lens_q`` [instances + 1] says the same; with neither, rows of a batch attend as in the library.
    """
    if packed is None and cu_seq_lens_q is not None:
        packed = tuple(stop - start for start, stop in pairwise(cu_seq_lens_q.tolist()))
    causal = bool(getattr(module, "is_causal", False)) if is_causal is None else is_causal
    if packed is None:
        batched: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, is_causal=causal, **others
        )
        return batched
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    return attention(query, key, value, packed, causal, scaling)[None], None


def register() -> None:
    """Make both names known to the library."""
    AttentionInterface.register(PACKED, packed_attention)
    AttentionInterface.register(PACKED_LENGTHS, packed_attention)
