"""Peft's LoRA layers in a model that has no weights yet, and which of its settings are carried."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from transformers import PreTrainedModel

from ds_dip.files import first_line
from ds_dip.models.hf.shell import ADAPTED, SplitError, is_added

#: Settings of ``LoraConfig`` that may be anything; all others must be what they are by default.
_CARRIED = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_alpha", "megatron_core", "peft_type", "peft_version",
    "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
}  # fmt: skip


def adapt(model: Any, lora: Any) -> None:
    """Put peft's layers in, on the meta device; of the models that get some, nothing else stays trained.

    Raises SplitError, with the setting, for one that is not carried.
    """
    from peft import inject_adapter_in_model

    _check(lora)
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    models = [name for name, module in model.named_modules() if name and isinstance(module, PreTrainedModel)]
    try:
        inject_adapter_in_model(lora, model, low_cpu_mem_usage=True)
    except ValueError as error:
        raise SplitError(f"lora does not fit {type(model).__name__} ({first_line(error)})") from error
    added = [name for name, _ in model.named_parameters() if is_added(name)]
    # The innermost model that holds an adapted layer.
    still = {max((path for path in models if name.startswith(f"{path}.")), key=len, default="") for name in added}
    if type(model.get_decoder()) in {type(model.get_submodule(path)) for path in still}:
        still.add("lm_head")
    for name, parameter in model.named_parameters():
        inside = any(name.startswith(f"{path}.") for path in still)
        parameter.requires_grad_(is_added(name) or (wanted.get(name.replace(ADAPTED, ""), True) and not inside))


def _check(lora: Any) -> None:
    from peft import LoraConfig

    if type(lora) is not LoraConfig:
        raise SplitError(f"lora is a {type(lora).__name__}, expected a LoraConfig of peft")
    plain = LoraConfig()
    for own in fields(LoraConfig):
        found, default = getattr(lora, own.name), getattr(plain, own.name)
        if own.name not in _CARRIED and found != default:
            raise SplitError(f"lora.{own.name} is {found!r}, and only {default!r} is carried; leave it out")
