"""Qwen2.5-VL: a tower with windowed attention over pictures of any size and frames of videos, a merger, Qwen2.

An instance of the vision module is a picture, or one step in time of a video (two frames), for none attends to another.
Fields: ``pixels`` [patches, channels steps patch²] in the order of the library's processor, ``places`` [patches, 2]
their rows and columns, ``tokens``, ``labels``, and ``positions`` [tokens, 3] in time, height and width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import Qwen2_5_VLModel
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_window_index

from ds_dip.models import kinds
from ds_dip.models.context import Context
from ds_dip.models.hf.attention import PACKED_LENGTHS
from ds_dip.models.hf.parts import Family, Part, encoder
from ds_dip.models.hf.shell import Shell
from ds_dip.models.hf.text import language
from ds_dip.models.spec import Layer, TensorSpec


@dataclass(frozen=True)
class Windows:
    """How patches are ordered by windows, in units of merged squares; bounds of windows and of whole instances."""

    order: Tensor
    within: Tensor
    whole: Tensor

    def permuted(self, x: Tensor, unit: int) -> Tensor:
        """Rows [N, …] brought into the windows' order."""
        return x.view(-1, unit, *x.shape[1:])[self.order].flatten(0, 1)


#: Of the places that layers of one stage share.
_known: Any = WeakTensorKeyDictionary()
#: The most rows or columns of patches that a picture is measured with; the tower itself has no limit.
_SIDE = 128


def windows_of(context: Context, config: Any) -> Windows:
    """The windows of a stage's instances."""
    places = context.fields["places"]
    found: Windows | None = _known.get(places)
    if found is None:
        ends = list(accumulate(context.sizes.tokens))
        corners = [(places[end - size : end].amax(0) + 1).tolist() for size, end in zip(context.sizes.tokens, ends,
                                                                                         strict=True)]  # fmt: skip
        for size, (height, width) in zip(context.sizes.tokens, corners, strict=True):
            if height * width != size:
                raise ValueError(
                    f"a picture has {size} patches and places up to row {height - 1}, column {width - 1}; give every "
                    "step in time of a video as an instance of its own"
                )
        grids = torch.tensor([(1, *corner) for corner in corners])
        order, within = get_vision_window_index(grids, config.spatial_merge_size, config.window_size, config.patch_size)
        device = places.device
        found = Windows(order.to(device), within.to(device), get_vision_cu_seqlens(grids).to(device))
        _known[places] = found
    return found


def positions_of(
    config: Any, tokens: Tensor, types: Tensor, pictures: Tensor | None, videos: Tensor | None, seconds: Tensor | None
) -> Tensor:
    """Positions [tokens, 3] of one sample's ``tokens`` and their ``types``, by the library.

    ``pictures`` and ``videos`` are the grids [n, 3] of patches, ``seconds`` [videos] those between steps in time.
    """
    library = SimpleNamespace(config=config)
    library.get_vision_position_ids = partial(Qwen2_5_VLModel.get_vision_position_ids, library)
    positions, _ = Qwen2_5_VLModel.get_rope_index(library, tokens[None], types[None], pictures, videos, seconds)
    return positions[:, 0].t().contiguous()  # type: ignore[no-any-return]  # the library's


class Embeddings(nn.Module):
    """Patches [N, numbers] to [N, hidden], in the order of windows."""

    def __init__(self, embeddings: nn.Module, config: Any) -> None:
        super().__init__()
        self.embeddings, self.unit = embeddings, config.spatial_merge_size**2
        self.__dict__["config"] = config

    def forward(self, x: Any, context: Context) -> Tensor:
        """Embed ``pixels``."""
        embedded: Tensor = self.embeddings(context.fields["pixels"])
        return windows_of(context, self.config).permuted(embedded, self.unit)


class VisionBlock(nn.Module):
    """A layer of the tower, [N, hidden] to [N, hidden], over windows or over whole instances."""

    selects_operators = True
    rotary: Any

    def __init__(self, block: nn.Module, rotary: nn.Module, config: Any, whole: bool) -> None:
        super().__init__()
        self.block, self.whole, self.unit = block, whole, config.spatial_merge_size**2
        self.__dict__.update(rotary=rotary, config=config)  # no children: see ``text.Block``

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """The library's layer on packed rows."""
        windows = windows_of(context, self.config)
        turned = self.rotary(x, context.fields["places"].long())
        turned = tuple(windows.permuted(own, self.unit) for own in turned)
        bounds = windows.whole if self.whole else windows.within
        output: Tensor = self.block(x, cu_seqlens=bounds, position_embeddings=turned)
        return output


class Merger(nn.Module):
    """Squares of neighbours [N, hidden] to rows of the language model's width [M, output], in the pictures' order."""

    def __init__(self, merger: nn.Module, config: Any) -> None:
        super().__init__()
        self.merger = merger
        self.__dict__["config"] = config

    def forward(self, x: Any, context: Context) -> Tensor:
        """Merge, project, and undo the windows' order."""
        if not isinstance(x, Tensor):
            (x,) = x.values()
        merged: Tensor = self.merger(x)
        return merged[torch.argsort(windows_of(context, self.config).order)]


def split(shell: Shell) -> Family:
    """Patch embedding, the tower's blocks, the merger, and the language model."""
    config = shell.model.config
    vision = config.vision_config
    # This way its layers hand over the bounds of windows, rather than cutting at each themselves.
    vision._attn_implementation = PACKED_LENGTHS
    hidden, heads = vision.hidden_size, vision.num_heads
    width = kinds.Width(hidden, heads, heads, hidden // heads, vision.intermediate_size, gated=True)
    merge = vision.spatial_merge_size
    window = (vision.window_size // merge // vision.patch_size * merge) ** 2
    fields, path = ("places",), "model.visual"
    first = kinds.patch_embedding(hidden, vision.patch_size, vision.in_channels * vision.temporal_patch_size, _SIDE)
    tower = [
        Part(
            Layer(first.kind, first.output, ("pixels", *fields), first.options),
            Embeddings,
            {"embeddings": f"{path}.patch_embed"},
            settings={"config": vision},
        )
    ]
    for n in range(vision.depth):
        whole = n in vision.fullatt_block_indexes
        block = kinds.encoder_block(width, vision.depth, None if whole else window)
        tower.append(
            Part(
                Layer(block.kind, block.output, fields, block.options),
                VisionBlock,
                {"block": f"{path}.blocks.{n}"},
                {"rotary": f"{path}.rotary_pos_emb"},
                {"config": vision, "whole": whole},
            )
        )
    options = {"hidden": hidden, "merge": merge**2, "output": vision.out_hidden_size, "inner": merge**2 * hidden}
    merger = Part(
        Layer("merger", (TensorSpec(("merged", vision.out_hidden_size)),), fields, options),
        Merger,
        {"merger": f"{path}.merger"},
        settings={"config": vision},
    )
    chains = encoder(shell, "vision", tower, [merger])
    tokens = (config.image_token_id, config.video_token_id)
    text = language(shell, "model.language_model", config.text_config, {chains[-1].name: tokens}, "positions")
    return Family((*chains, text))
