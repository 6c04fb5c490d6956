"""What every test may use: the port of distributed runs, and the accelerator that they run on."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports torch or DeepSpeed: no test needs a GPU, and two ranks share two cores.
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parent.parent

#: DeepSpeed leaves shared-memory buffers behind that are named after the port: one port for all runs.
PORT = int(os.environ.setdefault("DS_DIP_TEST_PORT", "29617"))


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    """The port on which distributed tests meet; what DeepSpeed leaves of it is removed at the end."""
    yield PORT
    for leftover in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{PORT}_*"):
        leftover.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def docs() -> str:
    """The text of docs/configuration.md."""
    return (ROOT / "docs" / "configuration.md").read_text()
