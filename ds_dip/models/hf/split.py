"""``from_transformers``: a model of the library, or its configuration or folder, as modules, layers and edges."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from ds_dip.files import FileError, first_line
from ds_dip.models.context import Context
from ds_dip.models.hf.attention import PACKED, register
from ds_dip.models.hf.lora import adapt
from ds_dip.models.hf.parts import Factory, Family, Part, is_frozen
from ds_dip.models.hf.shell import Shell, SplitError, is_added
from ds_dip.models.hf.weights import DIFFUSERS, INDEX, ModelWeights, NoWeights, Source, folder_weights
from ds_dip.models.loss import token_cross_entropy
from ds_dip.models.spec import Layer, Model, Module

#: The adapter of every family, by the configuration's ``model_type``: a module with a function ``split``.
FAMILIES = {
    "internvl": "ds_dip.models.hf.internvl",
    "llama": "ds_dip.models.hf.text",
    "llava_onevision": "ds_dip.models.hf.llava_onevision",
    "mistral": "ds_dip.models.hf.text",
    "qwen2": "ds_dip.models.hf.text",
    "qwen2_5_vl": "ds_dip.models.hf.qwen2_5_vl",
    "qwen2_audio": "ds_dip.models.hf.qwen2_audio",
    "qwen3": "ds_dip.models.hf.text",
}


@dataclass(frozen=True)
class Pretrained:
    """A model of the library, split: what ``DIPModule`` takes, and what is needed to save it as the library does.

    ``unused`` are the names of weights that no layer holds, since no loss depends on them. ``folder`` is where the
    model came from, None where that was no folder.
    """

    model: Model
    layers: Mapping[str, tuple[Factory, ...]]
    shell: Shell
    config: Any
    unused: tuple[str, ...]
    folder: Path | None = None
    lora: Any = None

    #: The loss summed over a microbatch.
    loss: Callable[[torch.Tensor, Context], torch.Tensor] = token_cross_entropy

    @property
    def index(self) -> str:
        """What the library calls the list of weights in a folder."""
        return INDEX if isinstance(self.shell.model, PreTrainedModel) else INDEX.replace("model", DIFFUSERS, 1)

    def save_config(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the configuration as the library does, for weights of a data type."""
        if isinstance(self.shell.model, PreTrainedModel):
            self.config.dtype = dtype
            self.config.save_pretrained(folder)
        else:
            self.shell.model.save_config(folder)

    def rest(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The unused weights and those that the model has not, by name; drawn ones are not kept."""
        return self.shell.source.read((*self.unused, *self.shell.source.others))


def add_family(model_type: str, module: str) -> None:
    """Name the adapter of another family: an importable module with ``split(shell) -> Family``."""
    FAMILIES[model_type] = module


def from_transformers(
    model: PreTrainedModel | PreTrainedConfig | str | Path,
    *,
    frozen: Sequence[str] = (),
    lora: Any = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Pretrained:
    """Split a model of transformers into modules and layers, which are built from its weights one by one.

    ``model`` is a folder that ``save_pretrained`` wrote, whose weights are read layer by layer; a model in memory,
    whose weights are copied; or a configuration, for weights drawn as the library draws them, by ``seed``. No rank
    ever holds more than its own layers. ``frozen`` names modules that are not trained, beside those of a model in
    memory whose weights all want no gradient. ``lora`` is peft's ``LoraConfig``: its layers are trained, and nothing
    else of the language model or tower that has some. ``dtype`` is what weights are built in, by default torch's.

    Raises SplitError, one sentence with the layer or attribute in the way, for a model that cannot be split, and
    FileError for a folder that cannot be read.
    """
    register()
    check_arguments(frozen, dtype)
    folder = Path(model) if isinstance(model, str | Path) else None
    config = config_of(model)
    build: Callable[[Shell], Family] = _adapter(config).split
    shell_model = empty_model(model, config)
    source = source_of(model, shell_model)
    if lora is not None:
        adapt(shell_model, lora)
    shell = Shell(shell_model, source, dtype or torch.get_default_dtype(), seed, frozenset(frozen))
    refuse_dropout(shell_model)
    family = build(shell)
    return split_model(_name(config), shell, ((shell, family),), frozen, config, folder, lora)


def check_arguments(frozen: object, dtype: object) -> None:
    """SplitError for what is no list of modules, and no data type to train in."""
    if isinstance(frozen, str):
        raise SplitError(f"frozen is the text {frozen!r}; give a list of modules")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise SplitError(f"dtype is {dtype!r}; give one of torch's floating-point types, or nothing for its default")


def source_of(model: Any, empty: Any) -> Source:
    """Where the weights of a folder, a model or a configuration are."""
    if isinstance(model, str | Path):
        return folder_weights(Path(model), empty)
    return ModelWeights(model) if isinstance(model, nn.Module) else NoWeights()


def split_model(
    name: str, main: Shell, families: Iterable[tuple[Shell, Family]], frozen: Sequence[str], config: Any,
    folder: Path | None, lora: Any,
) -> Pretrained:  # fmt: skip
    """What is told of a model whose chains are those of the families; ``main`` is what is saved again."""
    families = tuple(families)
    shells = {chain.name: shell for shell, family in families for chain in family.chains}
    chains = [chain for _, family in families for chain in family.chains]
    names = [name for chain in chains for name in (chain.name, *chain.covers)]
    if unknown := sorted(set(frozen) - set(names)):
        raise SplitError(f"frozen names {unknown[0]!r}, which is no module: they are {', '.join(names)}")
    unused = [_unused(shell, family) for shell, family in families]
    still = {chain.name: is_frozen(shells[chain.name], chain.name, chain.parts) for chain in chains}
    modules = tuple(
        Module(c.name, tuple(_counted(shells[c.name], part) for part in c.parts), still[c.name]) for c in chains
    )
    edges = tuple((source, chain.name) for chain in chains for source in chain.upstream)
    adapted = {c.name for c in chains for part in c.parts for path in part.paths.values()
               if any(map(is_added, shells[c.name].names(path)))}  # fmt: skip
    if adapted and all(still[name] for name in adapted):
        raise SplitError(f"lora adapts {', '.join(sorted(adapted))} alone, which frozen names; leave one of the two")
    layers = {c.name: tuple(Factory(shells[c.name], part, still[c.name]) for part in c.parts) for c in chains}
    return Pretrained(Model(name, modules, edges), layers, main, config, unused[-1], folder, lora)


def _counted(shell: Shell, part: Part) -> Layer:
    """The part's layer, which says how many weights the library's modules have."""
    weights = sum(shell.weights(path) for path in part.paths.values())
    return replace(part.layer, options={**part.layer.options, "weights": weights})


def describe(folder: str | Path, frozen: Sequence[str] = ()) -> Model:
    """What the model in a folder is, from its config.json alone; errors as for ``from_transformers``.

    The folder of a pipeline of diffusers is that of its transformer and text encoder.
    """
    from ds_dip.models.hf.diffusers import drawn_pipeline, is_pipeline

    if is_pipeline(folder):
        return drawn_pipeline(folder, frozen=frozen or ("text",)).model
    return from_transformers(config_of(folder), frozen=frozen).model


def drawn_or_read(folder: str | Path, seed: int = 0) -> Pretrained:
    """The model in a folder, with weights drawn where the folder holds its configuration alone."""
    from ds_dip.models.hf.diffusers import drawn_pipeline, from_diffusers, is_pipeline

    if is_pipeline(folder):
        has = any(Path(folder).glob("transformer/*.safetensors"))
        return from_diffusers(folder, seed=seed) if has else drawn_pipeline(folder, seed)
    if any(Path(folder).glob("*.safetensors")):
        return from_transformers(folder, seed=seed)
    return from_transformers(config_of(folder), seed=seed)


def config_of(model: Any) -> Any:
    """A configuration of one's own; SplitError or FileError where there is none, or it is a quantised model's."""
    config = _read_config(model)
    if (quantised := getattr(config, "quantization_config", None)) is not None:
        kind = dict(quantised if isinstance(quantised, dict) else quantised.to_dict()).get("quant_method", "some kind")
        raise SplitError(
            f"quantization_config is of {kind}, and quantised layers are not trained; give the model as it was before"
        )
    return config


def _read_config(model: Any) -> Any:
    if isinstance(model, PreTrainedModel):
        return copy.deepcopy(model.config)
    if isinstance(model, PreTrainedConfig):
        return copy.deepcopy(model)
    if not isinstance(model, str | Path):
        raise SplitError(
            f"model is a {type(model).__name__}, expected a model or configuration of transformers, or a folder"
        )
    if (Path(model) / "adapter_config.json").is_file():
        raise FileError(
            f"{model} holds an adapter of peft (adapter_config.json), whose weights are not read; give the folder of "
            "the model by itself, or one that the adapter was merged into"
        )
    if not (Path(model) / "config.json").is_file():
        raise FileError(f"{model} has no config.json; give a folder that save_pretrained wrote (nothing is downloaded)")
    try:
        return AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise FileError(f"{model}: the configuration cannot be read ({first_line(error)})") from error


def _adapter(config: Any) -> Any:
    if config.model_type not in FAMILIES:
        raise SplitError(
            f"model type {config.model_type!r} has no adapter; known are {', '.join(sorted(FAMILIES))}, and "
            "docs/transformers.md says how to add one"
        )
    return importlib.import_module(FAMILIES[config.model_type])


def _name(config: Any) -> str:
    return Path(getattr(config, "_name_or_path", "") or "").name or str(config.model_type)


def empty_model(model: Any, config: Any) -> Any:
    """The model without weights, its attention over packed rows."""
    cls = type(model) if isinstance(model, PreTrainedModel) else _class(config)
    with torch.device("meta"):
        empty = cls._from_config(copy.deepcopy(config), attn_implementation=PACKED)
    if isinstance(model, PreTrainedModel):
        known = dict(empty.named_parameters())
        for name, parameter in model.named_parameters():
            if name not in known:
                raise SplitError(
                    f"the model has {name}, which {cls.__name__} does not have as its configuration makes it; give it "
                    "without changes, and adapters as lora"
                )
            known[name].requires_grad_(parameter.requires_grad)
    return empty


def _class(config: Any) -> Any:
    """The class that the configuration was saved by, or the one for its type that has a loss."""
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )

    tables = (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )
    names = [*(config.architectures or ()), *(table.get(config.model_type) for table in tables)]
    for name in names:
        if isinstance(name, str) and hasattr(transformers, name):
            return getattr(transformers, name)
    raise SplitError(f"model type {config.model_type!r} has no class with a loss in this version of transformers")


def refuse_dropout(model: Any) -> None:
    """SplitError for a model that leaves anything out at random."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if ("dropout" in name or "layerdrop" in name) and isinstance(value, float) and value > 0:
                raise SplitError(
                    f"{path}.{name} is {value}, and a mask would depend on the order that stages run in; set it to 0 "
                    "in the configuration"
                )


def _unused(shell: Shell, family: Family) -> tuple[str, ...]:
    """Names of the weights that no layer holds; SplitError for one that the adapter does not know of."""
    held = {name for chain in family.chains for part in chain.parts for path in part.paths.values()
            for name in shell.names(path)}  # fmt: skip
    tied = set(getattr(shell.model, "all_tied_weights_keys", None) or ())
    left = [name for name in shell.model.state_dict() if name not in held and name not in tied]
    for name in left:
        if not any(name == path or name.startswith(f"{path}.") for path in family.unused):
            raise SplitError(
                f"{type(shell.model).__name__} has {name}, which no layer of its adapter holds; "
                "use a model without it, or extend the adapter"
            )
    return tuple(left)
