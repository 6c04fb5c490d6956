"""The clean end of a run."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

from deepspeed import comm as dist
from deepspeed.runtime.pipe import p2p

if TYPE_CHECKING:
    from ds_dip.runtime.engine import DIPEngine


def shutdown(*engines: DIPEngine, failed: bool = False) -> None:
    """End a run: planners stopped, ranks together, references dropped, process group destroyed.

    A process that has several engines ends them in one call, in the same order on every rank: the process group is
    all theirs. Without it about one run in three aborts at exit on gloo (docs/runtime.md). ``failed`` leaves out what
    needs the other ranks. The engines cannot be used afterwards; calling it twice does nothing. Raises
    TransportError, the engines ended all the same, where another rank is lost before the end.
    """
    living = [engine for engine in engines if not engine.closed]
    if not living:
        return
    together = dist.is_initialized() and not failed
    try:
        if together:
            with living[0].peers.told("the end of the run"):
                dist.barrier()
    except BaseException:
        together = False
        raise
    finally:
        for engine in living:
            engine.close()
            engine.destroy()
            engine.release()
        # DeepSpeed's global reference to the grid of the engine that was made last.
        p2p._grid = None
        gc.unfreeze()
        gc.collect()
        if together:
            dist.destroy_process_group()
        remove_buffers()


def remove_buffers() -> None:
    """Remove this job's shared buffers of DeepSpeed's CPU backend (66 MB a rank), which outlive it otherwise."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if address and port:
        for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_*"):  # noqa: S108
            buffer.unlink(missing_ok=True)
