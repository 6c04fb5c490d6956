"""The fields of a ``ds-dip/model`` 1 document, checked one by one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from ds_dip.models import kinds

NonNegativeInt = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Transformer(_Strict):
    """The sizes every module has; ``head_dim`` defaults to hidden / heads."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt | None = None
    ffn: PositiveInt
    gated: bool
    frozen: bool = False

    def width(self) -> kinds.Width:
        """The blocks' sizes."""
        head_dim = self.head_dim or self.hidden // self.heads
        return kinds.Width(self.hidden, self.heads, self.kv_heads, head_dim, self.ffn, self.gated)


class ImageEncoder(Transformer):
    """A ViT with the adapter: patch embedding, ``layers`` blocks, and a merger of ``merge`` patches to one token.

    ``image`` is the side of the largest image and ``patch`` that of a patch, in pixels. ``field`` is the dataset
    field with the patches.
    """

    kind: Literal["image_encoder"]
    patch: PositiveInt
    channels: PositiveInt
    image: PositiveInt
    merge: PositiveInt
    field: str = "pixels"


class LanguageModel(Transformer):
    """A decoder: token embedding, ``layers`` causal blocks with rotary positions, and the head.

    ``placeholders`` give the token that stands for one row of each upstream module's output.
    """

    kind: Literal["language_model"]
    vocabulary: PositiveInt
    placeholders: dict[str, NonNegativeInt] = {}
    rope_theta: PositiveInt = 10000
    tied_embeddings: bool = False


class TextEncoder(Transformer):
    """A decoder whose last states are what it gives: token embedding, ``layers`` causal blocks, and the final norm."""

    kind: Literal["text_encoder"]
    vocabulary: PositiveInt
    rope_theta: PositiveInt = 10000


class DiffusionTransformer(Transformer):
    """A DiT over the latents of video clips: embedding, ``layers`` blocks that attend to the clip's text, and the end.

    A latent frame is a square with ``side`` patches a side, each of ``patch`` x ``patch`` numbers of ``channels``;
    a clip has at most ``frames`` of them. ``field`` is the dataset field with the patches.
    """

    kind: Literal["diffusion_transformer"]
    patch: PositiveInt
    channels: PositiveInt
    side: PositiveInt
    frames: PositiveInt
    field: str = "latents"


AnyModule = ImageEncoder | TextEncoder | LanguageModel | DiffusionTransformer
#: Values of ``kind``.
KINDS = ("image_encoder", "text_encoder", "language_model", "diffusion_transformer")


class Setup(_Strict):
    """One way to run a model: devices a tensor-parallel group, pipeline ranks, data-parallel replicas, the device.

    ``device`` is the stem of a file in ``profiling/devices``. A rank of the pipeline is a tensor-parallel group.
    """

    tensor_parallel: PositiveInt
    ranks: PositiveInt
    replicas: PositiveInt
    device: str

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.tensor_parallel * self.ranks * self.replicas


class ModelConfig(_Strict):
    """A whole ``ds-dip/model`` 1 document."""

    format: Literal["ds-dip/model"]
    version: Literal[1]
    name: str
    modules: Annotated[list[Annotated[AnyModule, Field(discriminator="kind")]], Field(min_length=1)]
    edges: list[tuple[str, str]] = []
    setups: list[Setup] = []
