"""Names of a latency table's rows: operators, whole layers, and what the engine adds."""

from __future__ import annotations

from ds_dip.costs.operators import LAYER_KINDS, OPERATORS

#: Rows of whole layers are named by this and the layer's kind.
LAYER = "layer:"
#: The same with the forward computed again in the backward.
RECOMPUTED = "recomputed:"
#: Prefixes of a module's rows that are no operators: what the engine adds to a stage between its two marks (forward,
#: backward), and to a microbatch's first forward on a rank, where positions and packing are made; the load of a
#: stage's fields by instances, and the posts around a stage.
STAGE, FIRST, LOAD, POST = "stage:", "first:", "load:", "post:"
BATCH_END = "batch_end"


def is_known(name: str) -> bool:
    """Whether a row of this name is of use to anything."""
    prefix, colon, of = name.partition(":")
    if prefix + colon in (LAYER, RECOMPUTED):
        return of in LAYER_KINDS
    return name in OPERATORS or name == BATCH_END or (prefix + colon in (STAGE, FIRST, LOAD, POST) and bool(of))
