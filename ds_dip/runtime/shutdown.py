"""The clean end of a run."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

from deepspeed import comm as dist

if TYPE_CHECKING:
    from ds_dip.runtime.engine import DIPEngine


def shutdown(engine: DIPEngine, *, failed: bool = False) -> None:
    """End a run: planner stopped, ranks together, references dropped, process group destroyed.

    Without it about one run in three aborts at exit on gloo (docs/runtime.md). ``failed`` leaves out what
    needs the other ranks. The engine cannot be used afterwards; calling it twice does nothing. Raises
    TransportError, the engine ended all the same, where another rank is lost before the end.
    """
    if engine.closed:
        return
    together = dist.is_initialized() and not failed
    try:
        if together:
            with engine.peers.told("the end of the run"):
                dist.barrier()
    except BaseException:
        together = False
        raise
    finally:
        engine.close()
        engine.destroy()
        engine.release()
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
