"""What every test may count on: the CPU, one thread, and the documents to compare with."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports torch or DeepSpeed: no test needs a GPU, and two ranks share two cores.
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# DeepSpeed's compiled operation, for this environment alone: two that share one would build it in turn.
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix, "torch_extensions")))

# No test is about time: how long an example takes says more about what else runs on the machine.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def docs() -> str:
    """The text of docs/configuration.md."""
    return (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()
