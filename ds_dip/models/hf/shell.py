"""The library's model without any weights, of which single modules are made real one by one."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ds_dip.files import FileError
from ds_dip.models.hf.weights import NoWeights, Source

#: In the names of peft's layers, before what the layer had before.
ADAPTED = ".base_layer"
#: In the names of weights that peft adds.
ADDED = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B")


class SplitError(ValueError):
    """A model that cannot be split; the message names the layer or attribute that is in the way."""


def is_added(name: str) -> bool:
    """Whether a weight of this name is one that peft adds."""
    return any(f".{added}." in name for added in ADDED)


@dataclass(frozen=True)
class Shell:
    """A model of the library on torch's meta device, where it takes no memory, and where its weights are.

    ``dtype`` is what weights are built in; ``seed`` that of weights which the source does not have; ``frozen`` the
    names of modules that are not trained.
    """

    model: Any
    source: Source
    dtype: torch.dtype
    seed: int
    frozen: frozenset[str] = frozenset()

    def at(self, path: str) -> nn.Module | nn.Parameter:
        """The module or parameter at a path; SplitError where there is none."""
        parent, _, name = path.rpartition(".")
        try:
            found = getattr(self.model.get_submodule(parent), name)
        except AttributeError as error:
            raise SplitError(
                f"{type(self.model).__name__} has no {path}, which the family's adapter makes a layer of; give a model "
                "of the class that transformers has for its language modelling"
            ) from error
        if not isinstance(found, nn.Module | nn.Parameter):
            raise SplitError(f"{path} is a {type(found).__name__}, expected a module or a parameter")
        return found

    def names(self, path: str) -> list[str]:
        """Names of the weights at a path, as the model has them."""
        found = self.at(path)
        return [path] if isinstance(found, nn.Parameter) else [f"{path}.{name}" for name in found.state_dict()]

    def weights(self, path: str) -> int:
        """How many numbers the weights at a path have, without those that peft adds."""
        found = self.at(path)
        if isinstance(found, nn.Parameter):
            return found.numel()
        return sum(own.numel() for name, own in found.named_parameters() if not is_added(f"{path}.{name}"))

    def trained(self, paths: Iterable[str]) -> bool:
        """Whether any weight at these paths is trained."""
        for path in paths:
            found = self.at(path)
            own = [found] if isinstance(found, nn.Parameter) else list(found.parameters())
            if any(parameter.requires_grad for parameter in own):
                return True
        return False

    def build(self, path: str) -> nn.Module | nn.Parameter:
        """A copy of what is at a path, with its weights, on the CPU.

        Whatever the source lacks is drawn as the library draws it; where the source is a folder or a model it must
        have everything but what peft added. Raises FileError with the name otherwise.
        """
        found = self.at(path)
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
            torch.default_generator.manual_seed(_seed(self.seed, path))
            if isinstance(found, nn.Parameter):
                return self._parameter(path, found)
            configs = {id(m.config): m.config for m in found.modules() if hasattr(m, "config")}
            module = copy.deepcopy(found, dict(configs)).to_empty(device="cpu")
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.is_floating_point() and any(tensor is own for own in module.parameters()):
                    tensor.data = tensor.data.to(self.dtype)
            own = module.state_dict(keep_vars=True)
            loaded = self._read([f"{path}.{name}" for name in own])
            for name, tensor in loaded:
                target = own[name.removeprefix(f"{path}.")]
                self._fits(name, tensor, target)
                target.copy_(tensor)
                target._is_hf_initialized = True
            self._draw(module, path)
        return module

    def _parameter(self, path: str, found: nn.Parameter) -> nn.Parameter:
        for _, tensor in self._read([path]):
            self._fits(path, tensor, found)
            return nn.Parameter(tensor.to(self.dtype, copy=True), found.requires_grad)
        known = hasattr(self.model.config, "get_text_config")
        spread = getattr(self.model.config.get_text_config(), "initializer_range", 0.02) if known else 0.02
        return nn.Parameter(torch.randn(found.shape).mul_(spread).to(self.dtype), found.requires_grad)

    def _fits(self, name: str, tensor: torch.Tensor, target: torch.Tensor) -> None:
        if tensor.shape != target.shape:
            raise FileError(
                f"weight {name!r} is of shape {tuple(tensor.shape)}, and {type(self.model).__name__} of this "
                f"configuration has {tuple(target.shape)}; give the configuration that the weights were saved with"
            )

    def _read(self, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """The source's weights of these names; FileError for one that it lacks."""
        stored = {name.replace(ADAPTED, ""): name for name in names}
        missing = set(stored)
        for name, tensor in self.source.read(list(stored)):
            missing.discard(name)
            yield stored[name], tensor
        missing = {name for name in missing if not is_added(name)}
        if missing and not isinstance(self.source, NoWeights):
            raise FileError(
                f"weight {min(missing)!r} of {type(self.model).__name__} is not there ({len(missing)} missing); give "
                "all files of the model"
            )

    def _draw(self, module: nn.Module, path: str) -> None:
        """Let the library set what was not read: weights, and buffers that are never stored."""
        owner: Any = self.model
        for end in (place for place, letter in enumerate(f"{path}.") if letter == "."):
            if isinstance(inner := self.model.get_submodule(path[:end]), PreTrainedModel):
                owner = inner
        _initialize(module, owner)


def _initialize(module: Any, owner: Any) -> None:
    owner = module if isinstance(module, PreTrainedModel) else owner
    for child in module.children():
        _initialize(child, owner)
    if hasattr(module, "reset_lora_parameters"):
        for adapter in module.active_adapters:
            module.reset_lora_parameters(adapter, True)
    elif isinstance(owner, PreTrainedModel):
        owner._init_weights(module)
    else:
        _reset(module)


def _reset(module: Any) -> None:
    """Draw what was not read as torch does when a module is made, which is what diffusers does."""
    left = [own for own in module.parameters(recurse=False) if not getattr(own, "_is_hf_initialized", False)]
    if left and hasattr(module, "reset_parameters"):
        module.reset_parameters()
    else:
        for parameter in left:
            parameter.normal_().div_(parameter.shape[-1] ** 0.5)


def _seed(seed: int, path: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{path}".encode()).digest()[:7], "big")
