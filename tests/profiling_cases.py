"""A small model, its sweep, and tables of it, for the tests of costs and profiling."""

from __future__ import annotations

from dataclasses import replace

from ds_dip.costs.devices import Device
from ds_dip.costs.table import LatencyTable, Row, Seconds
from ds_dip.models import kinds
from ds_dip.models.spec import Model, Module, Sizes
from ds_dip.profiling.computed import computed_table
from ds_dip.profiling.sweep import Extent, Sweep

WIDTH = kinds.Width(hidden=8, heads=4, kv_heads=2, head_dim=2, ffn=16, gated=True)
MODEL = Model(
    "small",
    (
        Module("vision", (kinds.patch_embedding(8, 2, 1, 4), kinds.encoder_block(WIDTH, 1), kinds.merger(8, 4, 8))),
        Module(
            "language",
            (
                kinds.token_embedding(8, 32, {"vision": 3}),
                *(kinds.decoder_block(WIDTH, 2, 10000),) * 2,
                kinds.head(8, 32),
            ),
        ),
    ),
    (("vision", "language"),),
)
CLIPS = Model(
    "clips",
    (
        Module("text", (kinds.token_embedding(6, 32, {}), kinds.text_output(6)), frozen=True),
        Module(
            "video",
            (
                kinds.video_embedding(8, 6, kinds.Latent(patch=2, channels=3, side=2, frames=16)),
                *(kinds.diffusion_block(WIDTH, 2),) * 2,
                kinds.video_output(8, kinds.Latent(patch=2, channels=3, side=2, frames=16)),
            ),
        ),
    ),
    (("text", "video"),),
)
SWEEP = Sweep({"vision": Extent(16, 16, 4), "language": Extent(4, 64, 4)}, (1024, 65536), (1024, 65536), (100, 10000))
DEVICE = Device(
    "a device", {"float32": 1e12, "bfloat16": 2e12}, 8e10, 1e11, {"node": (1e10, 1e-6), "network": (1e9, 1e-5)}, 1e-6,
    {"flops": 0.5, "memory": 0.5, "link": 0.5}, ("made up",),
)  # fmt: skip


def sizes(*tokens: int) -> Sizes:
    """Instances of these sizes, merged to themselves."""
    return Sizes(tokens, tokens)


def table(**changes: object) -> LatencyTable:
    """The roofline's table of the small model."""
    return replace(computed_table(DEVICE, MODEL, SWEEP, "float32", 2, "node"), **changes)  # type: ignore[arg-type]  # any field


def row(name: str, forward: float, backward: float = 0.0, weight: float = 0.0, **shape: int) -> Row:
    """A measured row without spread."""
    return Row(name, shape, 1, Seconds(forward), Seconds(backward), Seconds(weight), repeats=10)
