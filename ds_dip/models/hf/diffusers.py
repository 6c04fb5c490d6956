"""``from_diffusers``: a diffusion transformer of diffusers and its prompts' encoder as modules, layers and edges."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from ds_dip.files import FileError, first_line, read_object
from ds_dip.models.hf.attention import register
from ds_dip.models.hf.shell import Shell, SplitError
from ds_dip.models.hf.split import (
    Pretrained,
    check_arguments,
    config_of,
    empty_model,
    refuse_dropout,
    source_of,
    split_model,
)

#: The adapter of every transformer, by its class: a module with ``split``.
TRANSFORMERS = {
    "PixArtTransformer2DModel": "ds_dip.models.hf.pixart",
    "WanTransformer3DModel": "ds_dip.models.hf.wan",
}
#: The folder beside a transformer's in a pipeline of diffusers, with the noise that it was trained with.
SCHEDULER = "scheduler"
#: What diffusers calls the list of a pipeline's parts.
PIPELINE = "model_index.json"
_MOST_BYTES = 1 << 24


def from_diffusers(
    transformer: Any,
    text_encoder: PreTrainedModel | PreTrainedConfig | str | Path | None = None,
    *,
    scheduler: Any = None,
    frozen: Sequence[str] = ("text",),
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Pretrained:
    """Split a diffusion transformer of diffusers, and the encoder of transformers that reads its prompts.

    ``transformer`` is a folder that diffusers saved, a model of a class in ``TRANSFORMERS``, or its configuration, for
    weights that are drawn; by itself, without a ``text_encoder``, it is the folder of a pipeline that has both.
    ``scheduler`` is the folder, or one of diffusers' schedulers, with the noise of a model that learns noise by steps
    (PixArt): by default the folder ``scheduler`` beside the transformer's, or diffusers' own numbers. The rest is as
    for ``from_transformers``, with its errors. The encoder computes without dropout, as it does where it is not
    trained.
    """
    import diffusers

    register()
    check_arguments(frozen, dtype)
    if text_encoder is None:
        transformer, text_encoder = _parts_of(transformer)
    text = config_of(text_encoder)
    text.dropout_rate = 0.0
    kind = dtype or torch.get_default_dtype()
    folder = Path(transformer) if isinstance(transformer, str | Path) else None
    config = _config_of(transformer, folder)
    name = str(config.get("_class_name"))
    if name not in TRANSFORMERS:
        raise SplitError(
            f"transformer is a {name}, expected a folder or a model of one of {', '.join(sorted(TRANSFORMERS))}"
        )
    adapter: Any = importlib.import_module(TRANSFORMERS[name])
    if scheduler is not None and not adapter.STEPWISE:
        raise SplitError(f"a scheduler is given, and {name} is trained at any time between a clip and noise; leave it")
    with torch.device("meta"):
        empty = getattr(diffusers, name).from_config(config)
    shells = []
    for model, own in ((text_encoder, empty_model(text_encoder, text)), (transformer, _like(transformer, empty))):
        shells.append(Shell(own, source_of(model, own), kind, seed, frozenset(frozen)))
        refuse_dropout(own)
    families, loss = adapter.split(*shells, *([_scheduler(scheduler, folder)] if adapter.STEPWISE else []))
    split = split_model(adapter.NAME, shells[1], zip(shells, families, strict=True), frozen, config, folder, None)
    return replace(split, loss=loss)


def is_pipeline(folder: str | Path) -> bool:
    """Whether a folder is one of a pipeline that diffusers saved."""
    return Path(folder, PIPELINE).is_file()


def drawn_pipeline(folder: str | Path, seed: int = 0, frozen: Sequence[str] = ("text",)) -> Pretrained:
    """What a pipeline's folder says by its configurations alone, with weights that are drawn."""
    transformer, text = _parts_of(folder)
    return from_diffusers(_config_of(transformer, transformer), config_of(text), frozen=frozen, seed=seed)


def _parts_of(folder: Any) -> tuple[Path, Path]:
    """The transformer's folder in a pipeline's, and its text encoder's."""
    if not isinstance(folder, str | Path) or not is_pipeline(folder):
        raise FileError(f"{folder} is no folder of a pipeline of diffusers ({PIPELINE}); give its text encoder too")
    return Path(folder, "transformer"), Path(folder, "text_encoder")


def _config_of(transformer: Any, folder: Path | None) -> dict[str, Any]:
    """A transformer's configuration, with the class that it was saved by."""
    if folder is None:
        found = transformer if isinstance(transformer, Mapping) else getattr(transformer, "config", {})
        return {"_class_name": type(transformer).__name__, **found}
    path = folder / "config.json"
    if not path.is_file():
        raise FileError(f"{folder} has no config.json; give the folder of a transformer that diffusers saved")
    return read_object(path, "a transformer's configuration", _MOST_BYTES)


def _like(model: Any, empty: nn.Module) -> nn.Module:
    """Weights of a model in memory that want no gradient want none in the empty one."""
    if isinstance(model, nn.Module):
        known = dict(empty.named_parameters())
        for name, parameter in model.named_parameters():
            if name not in known:
                raise SplitError(
                    f"the transformer has {name}, which {type(model).__name__} does not have as its configuration "
                    "makes it; give it without changes"
                )
            known[name].requires_grad_(parameter.requires_grad)
    return empty


def _scheduler(given: Any, folder: Path | None) -> Any:
    """Diffusers' scheduler for training with the noise of the given one, or of diffusers' own numbers."""
    from diffusers import DDPMScheduler

    if given is None and folder is not None and (folder.parent / SCHEDULER).is_dir():
        given = folder.parent / SCHEDULER
    try:
        if given is None:
            return DDPMScheduler()
        config = DDPMScheduler.load_config(given, local_files_only=True) if isinstance(given, str | Path) else given
        return DDPMScheduler.from_config(config if isinstance(config, dict) else config.config)
    except (OSError, ValueError, AttributeError) as error:
        raise FileError(f"scheduler {given} cannot be read ({first_line(error)}); give one of diffusers") from error
