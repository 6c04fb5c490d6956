"""Builds one rank's layers of a folder of transformers, and reports how far this process's memory rose for it."""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import LlamaForCausalLM  # what the library itself takes is no part of the measure

from ds_dip.models import from_transformers
from ds_dip.partition import make_partition
from tests.distributed.ranks import report


def peak() -> int:
    """The most memory that this process has had, in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> None:
    folder, ranks, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    assert LlamaForCausalLM
    before = peak()
    pretrained = from_transformers(folder)
    partition = make_partition(pretrained.model, ranks)
    layers = [
        factory()
        for chunk in partition.on(rank)
        for factory in pretrained.layers[chunk.module][chunk.start : chunk.stop]
    ]
    weights = sum(own.numel() * own.element_size() for layer in layers for own in layer.parameters())
    report(weights=weights, peak=1024 * (peak() - before))


if __name__ == "__main__":
    main()
