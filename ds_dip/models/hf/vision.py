"""What towers have in common that see images of one size: rows of patches to tiles and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ds_dip.models.context import Context


def tiles_of(rows: Tensor, side: int, channels: int) -> Tensor:
    """Rows of patches [tiles side², channels patch²], each tile's row by row, as images [tiles, channels, edge, edge].

    ``side`` is the patches a side of a tile.
    """
    patch = round((rows.shape[1] // channels) ** 0.5)
    cut = rows.view(-1, side, side, channels, patch, patch)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, channels, side * patch, side * patch)


class TileBlock(nn.Module):
    """An encoder's layer over tiles of ``patches`` rows each, [N, hidden] to [N, hidden]."""

    selects_operators = True

    def __init__(self, block: nn.Module, patches: int, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.block, self.patches, self.arguments = block, patches, arguments

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The library's layer on a batch of tiles."""
        output: Tensor = self.block(x.view(-1, self.patches, x.shape[1]), **self.arguments)
        return output.flatten(0, 1)
