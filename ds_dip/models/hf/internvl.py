"""InternVL: its own tower over tiles of pictures and frames of videos, pixel shuffle with a projector, and Qwen2.

An instance of the vision module is a picture with its tiles, or a video with its frames. Fields: ``pixels``
[rows, channels patch²], where the first row of every tile stands for its class token and is not read, ``tokens`` and
``labels``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from transformers import InternVLModel

from ds_dip.models import kinds
from ds_dip.models.context import Context
from ds_dip.models.hf.parts import Family, Part, encoder
from ds_dip.models.hf.shell import Shell, SplitError
from ds_dip.models.hf.text import language
from ds_dip.models.hf.vision import TileBlock, tiles_of
from ds_dip.models.spec import Layer, TensorSpec


class Embeddings(nn.Module):
    """Rows [N, channels patch²] to [N, hidden]: class tokens, patches, learned positions."""

    def __init__(self, embeddings: nn.Module, side: int, channels: int) -> None:
        super().__init__()
        self.embeddings, self.side, self.channels = embeddings, side, channels

    def forward(self, x: Any, context: Context) -> Tensor:
        """Embed the tiles of ``pixels``."""
        rows = context.fields["pixels"]
        patches = rows.view(-1, self.side**2 + 1, rows.shape[1])[:, 1:].flatten(0, 1)
        embedded: Tensor = self.embeddings(tiles_of(patches, self.side, self.channels))
        return embedded.flatten(0, 1)


class Projector(nn.Module):
    """Rows [N, hidden] to the language model's width [M, output]: squares of neighbours become one row."""

    library: Any

    def __init__(self, norm: nn.Module, projector: nn.Module, config: Any, side: int, last: bool) -> None:
        super().__init__()
        self.norm, self.projector, self.side, self.last = norm, projector, side, last
        self.__dict__["library"] = SimpleNamespace(config=config)  # what the library's function sees of the model

    def forward(self, x: Any, context: Context) -> Tensor:
        """Class tokens go, patches are shuffled as the library does it, and projected."""
        if not isinstance(x, Tensor):
            (x,) = x.values()
        tiles = x.view(-1, self.side**2 + 1, x.shape[1])
        tiles = (self.norm(tiles) if self.last else tiles)[:, 1:]
        squares = tiles.reshape(-1, self.side, self.side, x.shape[1])
        shuffled = InternVLModel.pixel_shuffle(self.library, squares, scale_factor=self.library.config.downsample_ratio)
        projected: Tensor = self.projector(shuffled.flatten(0, 2))
        return projected


def split(shell: Shell) -> Family:
    """The tower's layers up to the one whose output is read, shuffle and projector, and the language model."""
    config = shell.model.config
    vision, text = config.vision_config, config.text_config
    if not isinstance(config.vision_feature_layer, int) or config.vision_feature_select_strategy != "default":
        raise SplitError(
            f"vision_feature_layer is {config.vision_feature_layer} and vision_feature_select_strategy "
            f"{config.vision_feature_select_strategy!r}; only one layer's output without class tokens is split"
        )
    side = vision.image_size[0] // vision.patch_size[0]
    if vision.image_size[0] != vision.image_size[1] or vision.patch_size[0] != vision.patch_size[1]:
        raise SplitError(f"model.vision_tower sees tiles of {vision.image_size} pixels; only square ones are split")
    rows, hidden, heads = side**2 + 1, vision.hidden_size, vision.num_attention_heads
    depth = range(vision.num_hidden_layers + 1)[config.vision_feature_layer]
    width = kinds.Width(hidden, heads, heads, hidden // heads, vision.intermediate_size, gated=False)
    block, path = kinds.encoder_block(width, depth, rows), "model.vision_tower"
    tower = [
        Part(
            kinds.patch_embedding(hidden, vision.patch_size[0], vision.num_channels, side + 1),
            Embeddings,
            {"embeddings": f"{path}.embeddings"},
            settings={"side": side, "channels": vision.num_channels},
        ),
        *(
            Part(block, TileBlock, {"block": f"{path}.encoder.layer.{n}"}, {}, {"patches": rows, "arguments": {}})
            for n in range(depth)
        ),
    ]
    merge = round(1 / config.downsample_ratio) ** 2
    options = {"hidden": hidden, "merge": merge, "output": text.hidden_size}
    projector = Part(
        Layer("merger", (TensorSpec(("merged", text.hidden_size)),), (), options),
        Projector,
        {"norm": f"{path}.layernorm", "projector": "model.multi_modal_projector"},
        settings={"config": config, "side": side, "last": config.vision_feature_layer == -1},
    )
    chains = encoder(shell, "vision", tower, [projector])
    unused = tuple(f"{path}.encoder.layer.{n}" for n in range(depth, vision.num_hidden_layers))
    tokens = {chains[-1].name: (config.image_token_id,)}
    return Family((*chains, language(shell, "model.language_model", text, tokens)), unused)
