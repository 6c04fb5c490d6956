"""The clean end of a run."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from deepspeed import comm as dist

if TYPE_CHECKING:
    from ds_dip.runtime.engine import DIPEngine


def shutdown(engine: DIPEngine, *, failed: bool = False) -> None:
    """End a run: planner stopped, ranks together, references dropped, process group destroyed.

    Without it about one run in three aborts at exit on gloo (docs/runtime.md). ``failed`` leaves out what
    needs the other ranks. The engine cannot be used afterwards; calling it twice does nothing.
    """
    if engine.closed:
        return
    engine.close()
    if dist.is_initialized() and not failed:
        dist.barrier()
    engine.destroy()
    engine.release()
    gc.collect()
    if dist.is_initialized() and not failed:
        dist.destroy_process_group()
