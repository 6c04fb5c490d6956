"""The blocks of README.md and docs/ that train: by DeepSpeed's launcher, on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs_blocks import PAGES, Block, blocks, prepare, run

TRAINING = [block for page in PAGES for block in blocks(page) if block.runs and block.ranks]


@pytest.mark.parametrize(
    "block", [pytest.param(b, marks=[pytest.mark.nightly] if b.nightly else [], id=str(b)) for b in TRAINING]
)
def test_a_block_that_trains_runs(block: Block, tmp_path: Path) -> None:
    prepare(tmp_path)
    for other in blocks(block.page):
        if other.line < block.line and other.named:
            run(other, tmp_path)
    run(block, tmp_path, 300.0)
