"""LLaVA-OneVision: SigLIP over tiles of images and frames of videos, a projector, and Qwen2.

An instance of the vision module is a picture with all its tiles, or a video with all its frames. Fields: ``pixels``
[patches, channels patch²], ``layout`` [patches, 3] (0 for a picture or 1 for a video, its height, its width in pixels,
the same in all rows of an instance), ``tokens`` and ``labels``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionModel

from ds_dip.models import kinds
from ds_dip.models.context import Context
from ds_dip.models.hf.parts import Family, Part, encoder
from ds_dip.models.hf.shell import Shell, SplitError
from ds_dip.models.hf.text import language
from ds_dip.models.hf.vision import TileBlock, tiles_of
from ds_dip.models.spec import Layer, TensorSpec

#: What stands in ``layout`` for a picture and for a video.
PICTURE, VIDEO = 0, 1


class Embeddings(nn.Module):
    """Patches [N, channels patch²] to [N, hidden], with the tower's learned positions."""

    def __init__(self, embeddings: nn.Module, side: int, channels: int) -> None:
        super().__init__()
        self.embeddings, self.side, self.channels = embeddings, side, channels

    def forward(self, x: Any, context: Context) -> Tensor:
        """Embed the tiles of ``pixels``."""
        embedded: Tensor = self.embeddings(tiles_of(context.fields["pixels"], self.side, self.channels))
        return embedded.flatten(0, 1)


class Projector(nn.Module):
    """Patches [N, hidden] to the language model's width, tiles put together and their padding cut off [M, output]."""

    library: Any

    def __init__(self, projector: nn.Module, newline: nn.Parameter, config: Any, patches: int) -> None:
        super().__init__()
        self.projector, self.newline, self.patches = projector, newline, patches
        self.__dict__["library"] = SimpleNamespace(config=config)  # what the library's functions see of the model

    def forward(self, x: Any, context: Context) -> Tensor:
        """Rows as they stand in the text, an instance's after another's."""
        if not isinstance(x, Tensor):
            (x,) = x.values()
        projected = self.projector(x.view(-1, self.patches, x.shape[1]))
        starts = [0]
        for size in context.sizes.tokens:
            starts.append(starts[-1] + size)
        layout = context.fields["layout"][torch.tensor(starts[:-1], device=x.device)].tolist()
        tiles = [size // self.patches for size in context.sizes.tokens]
        rows = [self._rows(part, *own) for part, own in zip(projected.split(tiles), layout, strict=True)]
        return torch.cat(rows)

    def _rows(self, tiles: Tensor, kind: int, height: int, width: int) -> Tensor:
        if kind == VIDEO:
            pooled = LlavaOnevisionModel.apply_pooling(self.library, tiles).flatten(0, 1)
            return torch.cat([pooled, self.newline[None].to(pooled)])
        aspect = self.library.config.vision_aspect_ratio
        (rows,), _ = LlavaOnevisionModel.pack_image_features(
            self.library, [tiles], [(height, width)], self.newline, aspect
        )
        return rows  # type: ignore[no-any-return]  # the library's


def split(shell: Shell) -> Family:
    """The tower's layers up to the one whose output is read, the projector, and the language model."""
    config = shell.model.config
    vision, text = config.vision_config, config.text_config
    if vision.model_type != "siglip_vision_model":
        raise SplitError(f"model.vision_tower is {vision.model_type}, and this adapter knows siglip_vision_model alone")
    if not isinstance(config.vision_feature_layer, int) or config.vision_feature_select_strategy != "full":
        raise SplitError(
            f"vision_feature_layer is {config.vision_feature_layer} and vision_feature_select_strategy "
            f"{config.vision_feature_select_strategy!r}; only one layer's full output is split"
        )
    side = vision.image_size // vision.patch_size
    patches, hidden = side**2, vision.hidden_size
    depth = range(vision.num_hidden_layers + 1)[config.vision_feature_layer]
    heads = vision.num_attention_heads
    width = kinds.Width(hidden, heads, heads, hidden // heads, vision.intermediate_size, gated=False)
    block = kinds.encoder_block(width, depth, patches)
    tower = [
        Part(
            kinds.patch_embedding(hidden, vision.patch_size, vision.num_channels, side),
            Embeddings,
            {"embeddings": "model.vision_tower.embeddings"},
            settings={"side": side, "channels": vision.num_channels},
        ),
        *(
            Part(
                block,
                TileBlock,
                {"block": f"model.vision_tower.encoder.layers.{n}"},
                settings={"patches": patches, "arguments": {"attention_mask": None}},
            )
            for n in range(depth)
        ),
    ]
    options = {"hidden": hidden, "merge": 1, "output": text.hidden_size}
    projector = Part(
        Layer("merger", (TensorSpec(("merged", text.hidden_size)),), ("layout",), options),
        Projector,
        {"projector": "model.multi_modal_projector", "newline": "model.image_newline"},
        settings={"config": config, "patches": patches},
    )
    chains = encoder(shell, "vision", tower, [projector])
    tokens = (config.image_token_id, config.video_token_id)
    unused = [f"model.vision_tower.encoder.layers.{n}" for n in range(depth, vision.num_hidden_layers)]
    return Family(
        (*chains, language(shell, "model.language_model", text, {chains[-1].name: tokens})),
        ("model.vision_tower.post_layernorm", "model.vision_tower.head", *unused),
    )
