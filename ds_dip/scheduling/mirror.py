"""A problem with time reversed: edges turned round, acquire and release swapped.

A schedule of the mirror, read backwards, is a schedule of the problem, with the same memory use.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ds_dip.scheduling.arrays import Arrays


def mirrored(arrays: Arrays) -> Arrays:
    """The mirror: forwards become backwards, backwards and weight gradients forwards.

    Tails are left out, as they lie before the mirror's start; re-time an order read backwards.
    """
    if "mirror" not in arrays.cache:
        from ds_dip.scheduling import kernels

        topo, hops = arrays.topo[::-1].copy(), np.ones(arrays.n)
        rows = (arrays.pred_ptr, arrays.pred, np.zeros(len(arrays.pred)))
        depth = kernels.reach(topo, *rows, hops, np.zeros(arrays.n)).astype(np.int64)
        arrays.cache["mirror"] = replace(
            arrays,
            kind=np.where(arrays.kind == 0, 1, 0),
            acquire=arrays.release,
            release=arrays.acquire,
            tail=np.zeros(arrays.n),
            succ_ptr=arrays.pred_ptr,
            succ=arrays.pred,
            succ_delay=arrays.pred_delay,
            pred_ptr=arrays.succ_ptr,
            pred=arrays.succ,
            pred_delay=arrays.succ_delay,
            topo=topo,
            depth=depth,
            priority=arrays.n - 1 - arrays.priority,
            cache={},
        )
    return arrays.cache["mirror"]  # type: ignore[no-any-return]
